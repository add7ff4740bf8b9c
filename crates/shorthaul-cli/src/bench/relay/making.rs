//! Making the files that are missing.

use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;

use super::plan::Plan;

/// Makes them if that was asked for; else says which they are, and how to.
pub(super) fn make_missing(plan: &Plan) -> Result<()> {
    let mut missing: Vec<PathBuf> = plan.paths();
    // One that can't be looked at is not missing: opening it says what is wrong.
    missing.retain(|path| {
        std::fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
    let Some(bytes) = plan.make_bytes else {
        return ensure_none(&missing);
    };
    for (seed, path) in missing.iter().enumerate() {
        let name = path.display();
        make(path, bytes, seed as u64).with_context(|| format!("cannot make {name}"))?;
        eprintln!("made {name}: {} of pseudo-random bytes", ByteSize(bytes).display().iec());
    }
    Ok(())
}

fn ensure_none(missing: &[PathBuf]) -> Result<()> {
    let names: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
    match &names[..] {
        [] => Ok(()),
        [name] => bail!("there is no file {name}: --make 1GiB makes it"),
        names => bail!("there are no files {}: --make 1GiB makes them", names.join(", ")),
    }
}

/// Makes a file whose pages are all there, and all different. It has its name when it is whole;
/// before, a failure leaves nothing.
fn make(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // What any new file gets; the umask takes from it.
    let mode = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new()
        .prefix(".shorthaul-")
        .permissions(mode)
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    write_noise(file.as_file_mut(), bytes, seed)?;
    file.persist_noclobber(path)?;
    Ok(())
}

fn write_noise(file: &mut impl Write, bytes: u64, seed: u64) -> io::Result<()> {
    let (mut noise, mut block) = (Noise::new(seed), vec![0; BLOCK_BYTES]);
    let mut left = bytes;
    while left > 0 {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&noise.next()));
        let part = left.min(BLOCK_BYTES as u64);
        file.write_all(&block[..part as usize])?;
        left -= part;
    }
    Ok(())
}

/// Xorshift: bytes that no file system can fold together.
struct Noise(u64);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn next(&mut self) -> [u8; 8] {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_le_bytes()
    }
}

const BLOCK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_and_no_page_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file0");
        make(&path, 100_001, 0).unwrap();
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len(), 100_001);
        let pages: std::collections::HashSet<&[u8]> = written.chunks(4096).collect();
        assert_eq!(pages.len(), 25);
        assert!(make(&path, 1, 0).is_err(), "what is there stays");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let mut other = Vec::new();
        write_noise(&mut other, 100_001, 1).unwrap();
        assert_ne!(other, written);
    }

    #[test]
    fn a_failure_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no/file0");
        assert!(make(&path, 1, 0).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
