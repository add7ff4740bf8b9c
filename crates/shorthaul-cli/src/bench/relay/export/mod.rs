//! A result of relays in several forms. Exporters format; they measure and compute nothing.

mod columns;
pub(in crate::bench) mod csv;
pub(in crate::bench) mod html;
#[cfg(test)]
mod invented;
pub(in crate::bench) mod json;
pub(in crate::bench) mod markdown;
mod scaling;
pub(in crate::bench) mod seed;
pub(in crate::bench) mod table;
#[cfg(test)]
mod tests;

use super::report::{Group, RelayReport, SourceFile};
use super::sink::clients;
use crate::bench::plan::format_bytes;

/// `2 clients, one file, chunks of 64 KiB`.
fn heading(group: &Group) -> String {
    let Group { clients: count, files, chunk_bytes, .. } = *group;
    let chunk = format_bytes(chunk_bytes);
    format!("{}, {}, chunks of {chunk}", clients(count), files.description(count))
}

/// Which files went where, how often, and who took them: sentences.
fn setting(report: &RelayReport) -> String {
    let settings = &report.settings;
    let mut said = format!("{} to {}", files(&settings.files), settings.sink.description());
    if let Some(receive) = settings.receive {
        said += &format!("; the receiver {}", receive.description());
    }
    if settings.is_verified {
        said += "; every byte that arrived was compared";
    }
    let loops = settings.loops;
    let times = if loops == 1 { "once".to_owned() } else { format!("{loops} times") };
    said += &format!("; each file {times}, for {} s at most", settings.seconds_max);
    let place = match settings.client_cpus.is_empty() {
        true => "clients and receivers run where the kernel likes",
        false => "each client and its receiver on one CPU",
    };
    format!("{said}; {place}")
}

fn files(files: &[SourceFile]) -> String {
    let size = |file: &SourceFile| format_bytes(usize::try_from(file.bytes).unwrap_or(usize::MAX));
    match files {
        [] => "no file".to_owned(),
        [one] => format!("{} ({})", one.name, size(one)),
        [first, .., last] => {
            let count = files.len();
            let same = files.iter().all(|file| file.bytes == first.bytes);
            let of = if same { format!(" of {}", size(first)) } else { String::new() };
            format!("{count} files{of} ({} to {})", first.name, last.name)
        }
    }
}

/// How speeds are shown to people.
fn mib(bytes_per_second: f64) -> f64 {
    bytes_per_second / f64::from(1 << 20)
}

/// In lines that fit a terminal; all but the first are set in by `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= LINE_CHARS {
            *line += &format!(" {word}");
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines.join("\n")
}

const LINE_CHARS: usize = 100;
