//! Objects in sealed memory: made once, sent to many.

use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use shorthaul_platform::memory::{Draft, HugePages, SealedMapping};

use crate::error::{Error, Result};

/// Bytes that nobody can change any more, in a memory file that may be sent to any number of
/// receivers: all of them read the same pages, and no byte is copied. Cheap to clone.
#[derive(Clone)]
pub struct SealedObject {
    inner: Arc<Inner>,
}

struct Inner {
    file: OwnedFd,
    bytes: SealedMapping,
}

impl SealedObject {
    /// An object that is a copy of `bytes`, on huge pages where it is large enough.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel has no memory or no descriptor for it.
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        Self::copy_with(bytes, HugePages::Auto)
    }

    /// An object that is a copy of `bytes`, with pages as they are wanted.
    ///
    /// # Errors
    /// As [`SealedObject::copy_of`].
    pub fn copy_with(bytes: &[u8], pages: HugePages) -> Result<Self> {
        Self::finish(bytes.len(), pages, |draft| draft.write_at(0, bytes))
    }

    /// An object of `bytes` bytes, zero until `write` has written them, on huge pages where it is
    /// large enough.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel has no memory or no descriptor for it; what `write` returns.
    pub fn write(
        bytes: usize,
        write: impl FnOnce(&mut [u8]) -> std::io::Result<()>,
    ) -> Result<Self> {
        Self::write_with(bytes, HugePages::Auto, write)
    }

    /// An object of `bytes` bytes as [`SealedObject::write`] makes it, with pages as they are
    /// wanted.
    ///
    /// # Errors
    /// As [`SealedObject::write`].
    pub fn write_with(
        bytes: usize,
        pages: HugePages,
        write: impl FnOnce(&mut [u8]) -> std::io::Result<()>,
    ) -> Result<Self> {
        Self::finish(bytes, pages, |draft| write(draft.as_mut_slice()?))
    }

    fn finish(
        bytes: usize,
        pages: HugePages,
        write: impl FnOnce(&mut Draft) -> std::io::Result<()>,
    ) -> Result<Self> {
        let made = Draft::create(MEMFD_NAME, bytes).and_then(|draft| {
            let mut draft = draft.with_pages(pages);
            write(&mut draft)?;
            let sealed = draft.seal(bytes)?;
            Ok((sealed.map()?, sealed.into_descriptor()))
        });
        let (bytes, file) =
            made.map_err(|error| Error::memory(&format!("an object of {bytes} bytes"), error))?;
        Ok(Self { inner: Arc::new(Inner { file, bytes }) })
    }

    /// A descriptor of it, to be sent.
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.inner.file.as_fd().try_clone_to_owned()
    }

    /// Whether it has these bytes.
    pub(crate) fn contains(&self, range: &Range<usize>) -> bool {
        range.start <= range.end && range.end <= self.len()
    }
}

impl Deref for SealedObject {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.inner.bytes
    }
}

impl AsRef<[u8]> for SealedObject {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SealedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedObject").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// What sealed memory is called in /proc/PID/maps.
pub(crate) const MEMFD_NAME: &str = "shorthaul-sealed";

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_was_written() {
        assert_eq!(&SealedObject::copy_of(b"hello").unwrap()[..], b"hello");
        assert!(SealedObject::copy_of(b"").unwrap().is_empty());
        let write = |bytes: &mut [u8]| {
            bytes[1] = 7;
            Ok(())
        };
        assert_eq!(&SealedObject::write(3, write).unwrap()[..], [0, 7, 0]);
        let fail = |_: &mut [u8]| Err(std::io::ErrorKind::Other.into());
        assert!(SealedObject::write(3, fail).is_err());
    }
}
