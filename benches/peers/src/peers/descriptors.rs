//! Descriptors from process to process.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends them along with `bytes`.
pub(super) fn send(link: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let is_room = control.push(SendAncillaryMessage::ScmRights(descriptors));
        ensure!(is_room, "too many descriptors for one message");
    }
    let sent = sendmsg(link, &[IoSlice::new(bytes)], &mut control, SendFlags::empty())?;
    ensure!(sent == bytes.len(), "only {sent} bytes went along with the descriptors");
    Ok(())
}

/// Fills `bytes`; returns what came along.
pub(super) fn receive(link: &UnixStream, bytes: &mut [u8]) -> Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let expected = bytes.len();
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = recvmsg(link, &mut [IoSliceMut::new(bytes)], &mut control, flags)?.bytes;
    ensure!(received == expected, "the other side has gone");
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(descriptors)
}

/// Receives exactly `COUNT`, along with one byte.
pub(super) fn receive_exactly<const COUNT: usize>(link: &UnixStream) -> Result<[OwnedFd; COUNT]> {
    let descriptors = receive(link, &mut [0])?;
    descriptors.try_into().ok().with_context(|| format!("{COUNT} descriptors were to come"))
}

const SPACE: usize = rustix::cmsg_space!(ScmRights(4));
