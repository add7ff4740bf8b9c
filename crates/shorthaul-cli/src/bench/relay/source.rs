//! The files that are relayed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Client i's file: the name with its number, as in the original.
pub(super) fn path(name: &Path, index: usize) -> PathBuf {
    let mut path = OsString::from(name);
    path.push(index.to_string());
    path.into()
}

/// Opens a file to read it. Another open of the same one has a position and a readahead of its own.
pub(super) fn open(path: &Path) -> Result<File> {
    let name = path.display();
    let kind = fs::metadata(path).with_context(|| format!("cannot look at {name}"))?.file_type();
    // A pipe would wait for its writer.
    if !kind.is_file() && !kind.is_block_device() {
        let what = if kind.is_dir() { "a directory" } else { "no file" };
        bail!("{name} is {what}; relays here begin at files");
    }
    File::open(path).with_context(|| format!("cannot read {name}"))
}

/// Of a file of `bytes` bytes the share that can be read without a disk; none if the file system
/// doesn't say. Looked at in some places, evenly apart.
pub(super) fn cached_share(file: &File, bytes: u64) -> Option<f64> {
    let places = (bytes / PLACE_BYTES).clamp(1, PLACES_MAX);
    let mut cached = 0;
    for place in 0..places {
        match is_cached(file, bytes / places * place) {
            Ok(true) => cached += 1,
            Ok(false) => {}
            Err(_) => return None,
        }
    }
    Some(cached as f64 / places as f64)
}

/// Reads a byte, but only if that needn't wait.
fn is_cached(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    match preadv2(file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

const PLACE_BYTES: u64 = 64 << 10;
const PLACES_MAX: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_their_number() {
        assert_eq!(path(Path::new("a/file"), 0), Path::new("a/file0"));
        assert_eq!(path(Path::new("splice-file"), 12), Path::new("splice-file12"));
    }

    #[test]
    fn what_was_written_just_now_is_cached() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file0");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let share = cached_share(&open(&path).unwrap(), 1 << 20);
        assert!(share.is_none_or(|share| share == 1.0), "{share:?}");
    }

    #[test]
    fn only_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| format!("{:#}", open(path).unwrap_err());
        assert!(said(folder.path()).contains("is a directory"));
        assert!(said(Path::new("/dev/zero")).contains("no file"));
        assert!(said(&folder.path().join("file0")).contains("file0"));
    }
}
