//! Results that an earlier run has written: what `--compare` and `bench report` begin with.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::error::Category;

use super::relay::RelayReport;
use super::report::Report;

/// A result of one of the benches.
#[allow(clippy::large_enum_variant, reason = "there is one")]
pub(crate) enum Saved {
    Calls(Report),
    Relays(RelayReport),
}

/// Reads the result of a bench of calls in its JSON form: others can't be compared with it.
pub(crate) fn read_calls(path: &Path) -> Result<Report> {
    match read(path)? {
        Saved::Calls(report) => Ok(report),
        Saved::Relays(_) => bail!(
            "{} is a result of bench relay, and only results of calls can be compared",
            path.display()
        ),
    }
}

/// Reads a result in its JSON form.
pub(crate) fn read(path: &Path) -> Result<Saved> {
    let name = path.display();
    let text = read_text(path)?;
    let read = match serde_json::from_slice::<Head>(&text) {
        Ok(Head { kind: Some(_) }) => serde_json::from_slice(&text).map(Saved::Relays),
        _ => serde_json::from_slice(&text).map(Saved::Calls),
    };
    match read {
        Ok(report) => Ok(report),
        Err(error) if error.classify() == Category::Data => {
            bail!("{name} is JSON, but no result of this bench ({error}); {WAY_OUT}")
        }
        Err(error) => bail!("{name} is not whole JSON ({error}); {WAY_OUT}"),
    }
}

/// What tells one result from another; one of calls doesn't say.
#[derive(Deserialize)]
struct Head {
    kind: Option<serde_json::Value>,
}

fn read_text(path: &Path) -> Result<Vec<u8>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}; {WAY_OUT}"))?;
    let mut text = Vec::new();
    file.take(BYTES_MAX + 1)
        .read_to_end(&mut text)
        .with_context(|| format!("cannot read {name}; {WAY_OUT}"))?;
    ensure!(text.len() as u64 <= BYTES_MAX, "{name} is too large for a result; {WAY_OUT}");
    Ok(text)
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
        let report = read_calls(&folder.join("2026-11-30-sizes.json")).unwrap();
        assert_eq!((report.in_flight, report.rounds_dropped), (1, 0));
        assert!(report.sections.iter().any(|section| !section.payloads.is_empty()));
    }
}
