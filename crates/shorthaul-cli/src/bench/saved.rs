//! Results that an earlier run has written: what `--compare` and `bench report` begin with.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::error::Category;

use super::report::Report;

/// Reads a result in its JSON form.
pub(crate) fn read(path: &Path) -> Result<Report> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}; {WAY_OUT}"))?;
    let mut text = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut text)
        .with_context(|| format!("cannot read {name}; {WAY_OUT}"))?;
    ensure!(text.len() as u64 <= BYTES_MAX, "{name} is too large for a result; {WAY_OUT}");
    match serde_json::from_slice(&text) {
        Ok(report) => Ok(report),
        Err(error) if error.classify() == Category::Data => {
            bail!("{name} is JSON, but no result of this bench ({error}); {WAY_OUT}")
        }
        Err(error) => bail!("{name} is not whole JSON ({error}); {WAY_OUT}"),
    }
}

const WAY_OUT: &str = "give a file that `shorthaul bench --output FILE.json` has written";
/// A cell takes about a kilobyte: room for many runs' worth of them.
const BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_before_the_newer_fields_are_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let report = read(&folder.join("2026-11-30-sizes.json")).unwrap();
        assert_eq!((report.in_flight, report.rounds_dropped), (1, 0));
        assert!(report.sections.iter().any(|section| !section.payloads.is_empty()));
    }
}
