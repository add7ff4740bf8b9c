//! Small text files and numbered folders of /sys and /proc, read with bounds.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use super::cpu_set::{CPU_IDS_MAX, CpuSet};

/// The text of a file without the white space and NUL bytes at its ends (recorded trees have both).
pub(super) fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let bytes_max = FILE_BYTES_MAX + 1;
    let bytes = open(path)?.take(bytes_max).read_to_string(&mut text)?;
    if bytes as u64 == bytes_max {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
}

/// The set in the first of these files of a folder that holds one. A name that ends in `list` is
/// in list format, any other in mask format.
pub(super) fn first_set(folder: &Path, names: &[&str]) -> Option<CpuSet> {
    names.iter().find_map(|name| {
        let text = text(&folder.join(name)).ok().filter(|text| !text.is_empty())?;
        if name.ends_with("list") { text.parse().ok() } else { CpuSet::from_mask(&text).ok() }
    })
}

/// A label, unless the machine does not know it: file missing, malformed, -1, or 65535 (a 16-bit
/// -1).
pub(super) fn label(path: &Path) -> Option<u32> {
    let label = i64::from_str(&text(path).ok()?).ok()?;
    u32::try_from(label).ok().filter(|&label| label != 0xffff && label != u32::MAX)
}

/// The N of the entries `<prefix>N` of a folder, below [`CPU_IDS_MAX`].
pub(super) fn numbered(folder: &Path, prefix: &str) -> io::Result<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| number(name.strip_prefix(prefix)?)));
    }
    Ok(numbers)
}

/// A recorded absolute path below the root: it never climbs out of it.
pub(super) fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let mut full = root.to_owned();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => full.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(full)
}

/// A recorded tree is somebody's data: a pipe in a file's place must not block.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Only the kernel's own spelling: `cpu07` is not the folder of CPU 7.
fn number(digits: &str) -> Option<u32> {
    let number: u32 = digits.parse().ok().filter(|&number| number < CPU_IDS_MAX)?;
    (number.to_string() == digits).then_some(number)
}

/// A list of every second of 2^20 CPUs has 3.6 MB.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn labels_that_say_nothing_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("label");
        for text in ["", "-1", "65535", "4294967295", "4294967296", "garbage", "1 2", "\u{fffd}"] {
            fs::write(&path, text).unwrap();
            assert_eq!(label(&path), None, "{text}");
        }
        fs::write(&path, b"\xff\xfe").unwrap();
        assert_eq!(label(&path), None);
        assert_eq!(label(folder.path()), None);
        fs::write(&path, "8442\n\0").unwrap();
        assert_eq!(label(&path), Some(8442));
    }

    #[test]
    fn a_file_without_an_end_is_too_large_and_no_file_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("endless");
        File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(text(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(text(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn only_the_kernels_spelling_is_a_number() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cpu0", "cpu12", "cpu07", "cpu+1", "cpu", "cpufreq", "cpu1048576", "node3"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let numbers = numbered(folder.path(), "cpu").unwrap();
        assert!(numbers.into_iter().eq([0, 12]));
    }

    #[test]
    fn paths_stay_below_the_root() {
        let root = Path::new("root");
        assert_eq!(below(root, "/"), Some("root".into()));
        assert_eq!(below(root, "/a/b"), Some("root/a/b".into()));
        assert_eq!(below(root, "/a/../../b"), None);
    }
}
