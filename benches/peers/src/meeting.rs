//! How the two processes of a peer find one another.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// What both sides know before they are connected.
#[derive(Debug)]
pub(crate) struct Meeting {
    /// A stream between them. The peer may send what it likes on it once the server is ready.
    pub(crate) link: UnixStream,
    /// A folder that is theirs alone.
    pub(crate) folder: PathBuf,
    /// Payload of every call to come.
    pub(crate) bytes: usize,
    /// How many calls will be under way at most.
    pub(crate) in_flight: usize,
}

impl Meeting {
    /// The server's side, whose link is its standard input.
    pub(crate) fn of_server(folder: PathBuf, bytes: usize, in_flight: usize) -> Result<Self> {
        let link = std::io::stdin().as_fd().try_clone_to_owned()?.into();
        Ok(Self { link, folder, bytes, in_flight })
    }

    /// A socket path of theirs.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// A word that no other pair of processes has; what is found under it later is removed.
    #[cfg_attr(
        not(any(feature = "iceoryx2", feature = "shmipc")),
        allow(dead_code, reason = "its peers are left out")
    )]
    pub(crate) fn unique(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default();
        name.to_string_lossy().trim_start_matches('.').to_owned()
    }

    /// Says that the server can be called.
    pub(crate) fn ready(&self) -> Result<()> {
        self.send(READY)
    }

    /// Waits until it can.
    pub(crate) fn wait_until_ready(&self) -> Result<()> {
        self.receive().context("the server has ended before it was ready").map(drop)
    }

    /// Sends a few bytes.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<()> {
        let length = u32::try_from(bytes.len())?.to_le_bytes();
        (&self.link).write_all(&[&length, bytes].concat())?;
        Ok(())
    }

    /// Receives what the other side has sent so.
    pub(crate) fn receive(&self) -> Result<Vec<u8>> {
        let mut length = [0; 4];
        (&self.link).read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        (&self.link).read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Waits until the other side has gone; for servers whose threads do the work.
    pub(crate) fn wait_until_left(&self) -> Result<()> {
        (&self.link).read_to_end(&mut Vec::new())?;
        Ok(())
    }
}

const READY: &[u8] = b"ready";
