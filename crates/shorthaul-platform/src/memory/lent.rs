//! Who still holds a memory file that was given away? The kernel knows.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags};

use super::draft::{Draft, SealedFile};

/// A sealed file that others may hold, by a descriptor that tells whether they still do.
///
/// A sealed file stays charged to its maker for as long as anybody has it open or mapped, so that
/// who gives such files away must know how much is still out. One way escapes it: a descriptor that
/// was opened with `O_PATH` keeps the pages, and the kernel doesn't count it.
#[derive(Debug)]
pub struct LentFile {
    /// Opened for itself and for reading only: a lease for writing is granted on it if and only if
    /// the file is open or mapped nowhere else.
    watch: OwnedFd,
}

impl LentFile {
    /// Makes a descriptor of `file` to be given away, and what watches over it.
    ///
    /// # Errors
    /// Those of open(2): `EMFILE`, or `ENOENT` where /proc is not mounted.
    ///
    /// # References
    /// fcntl(2), "Leases"; the kernel's `check_conflicting_open`, which counts how often a file was
    /// opened. The descriptor that memfd_create(2) made was never opened and does not count.
    pub fn lend(file: SealedFile) -> io::Result<(OwnedFd, Self)> {
        let gift = open_anew(&file)?;
        let watch = open_anew(&file)?;
        // Should somebody open the file in the moment in which the lease is held, a signal comes
        // that nobody minds; by default it would end the process.
        set_lease_signal(&watch, libc::SIGURG)?;
        Ok((gift, Self { watch }))
    }

    /// Whether this system tells who holds a file.
    ///
    /// # Errors
    /// Why not: no memory files, no /proc, or leases that are refused or switched off
    /// (`fs.leases-enable`).
    pub fn ensure_possible() -> io::Result<()> {
        let because =
            |what: &str, error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
        let file = Draft::create("shorthaul-probe", 0).and_then(|draft| draft.seal(0));
        let file = file.map_err(|error| because("memory files are refused", error))?;
        let (gift, lent) =
            Self::lend(file).map_err(|error| because("/proc/self/fd can't be opened", error))?;
        if lent.ask_if_held().is_ok_and(|is_held| !is_held) {
            return Err(io::Error::other("a lease was granted on a file that somebody has open"));
        }
        drop(gift);
        let is_held = lent.ask_if_held().and_then(|is_held| match is_held {
            false => Ok(()),
            true => Err(rustix::io::Errno::AGAIN.into()),
        });
        is_held.map_err(|error| {
            because("leases are refused, or switched off by fs.leases-enable", error)
        })
    }

    /// Whether somebody else has it open (but by `O_PATH`) or mapped; also when the kernel can't
    /// tell.
    pub fn is_held(&self) -> bool {
        self.ask_if_held().unwrap_or(true)
    }

    fn ask_if_held(&self) -> io::Result<bool> {
        match set_lease(&self.watch, libc::F_WRLCK) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        }
        // Fails only if there is no lease.
        set_lease(&self.watch, libc::F_UNLCK).ok();
        Ok(false)
    }
}

fn open_anew(file: &SealedFile) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn set_lease(file: &OwnedFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: takes two numbers and touches no memory of ours; the descriptor is open.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set_lease_signal(file: &OwnedFd, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: takes two numbers and touches no memory of ours; the descriptor is open.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, signal) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// fcntl(2); the same on every architecture of Linux.
const F_SETSIG: libc::c_int = 10;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;
    use crate::memory::SealedMapping;

    fn lent(bytes: usize) -> (OwnedFd, LentFile) {
        let mut draft = Draft::create("test", bytes).unwrap();
        draft.write_at(0, &vec![1; bytes]).unwrap();
        LentFile::lend(draft.seal(bytes).unwrap()).unwrap()
    }

    #[test]
    fn open_descriptors_and_mappings_hold_it() {
        let (gift, lent) = lent(10_000);
        assert!(lent.is_held(), "by the descriptor");
        let mapping = SealedMapping::parse(gift, 10_000).unwrap();
        assert!(lent.is_held(), "by the mapping");
        drop(mapping);
        assert!(!lent.is_held());
        assert!(!lent.is_held(), "asking changes nothing");
    }

    #[test]
    fn it_is_possible_here() {
        LentFile::ensure_possible().unwrap();
    }

    #[test]
    fn copies_of_the_descriptor_hold_it() {
        let (gift, lent) = lent(1);
        let copy = gift.try_clone().unwrap();
        drop(gift);
        assert!(lent.is_held(), "by a copy");
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let anew = fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        drop(copy);
        assert!(lent.is_held(), "by who opened it anew, for writing even");
        assert!(rustix::io::pwrite(&anew, b"x", 0).is_err());
        drop(anew);
        assert!(!lent.is_held());
    }
}
