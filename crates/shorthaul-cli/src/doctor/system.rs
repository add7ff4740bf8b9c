//! Small files of /proc and /sys, and errors in the kernel's words.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};

/// The text of a file, or a sentence that says why there is none.
pub(super) fn read(path: &str) -> Result<String, String> {
    let text = File::open(path).and_then(|file| {
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    });
    text.map_err(|error| format!("{path} can't be read: {}", words(&error)))
}

/// A number in a file.
pub(super) fn number(path: &str) -> Result<u64, String> {
    let text = read(path)?;
    text.parse().map_err(|_| format!("{path} holds no number but {text:?}"))
}

/// Value and origin, or why there is none: for values that only explain.
pub(super) fn shown(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    read(path).map_or_else(|_| format!("{name} can't be read"), |text| format!("{name} {text}"))
}

/// What the kernel says to an errno, without Rust's number of it.
pub(super) fn words(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

/// The word in brackets of a choice such as "always [never]".
pub(super) fn chosen(choices: &str) -> &str {
    let inside = choices.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(choices, |(word, _)| word)
}

/// Of the kernel that runs.
pub(super) fn kernel_version() -> Option<(u32, u32)> {
    version_in(&rustix::system::uname().release().to_string_lossy())
}

/// Major and minor number in a release such as "6.18.44-generic".
pub(super) fn version_in(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What the kernel answered to a trial.
pub(super) fn refused(error: impl Into<io::Error>) -> String {
    format!("refused: {}", words(&error.into()))
}

pub(super) fn untried(why: impl Display) -> String {
    format!("could not be tried: {why}")
}

/// "2.0 MiB", "unlimited".
pub(super) fn bytes(count: u64) -> String {
    bytesize::ByteSize::b(count).display().iec().to_string()
}

/// No file that is read here is longer.
const BYTES_MAX: u64 = 4 << 20;
