//! Where a result goes, and in which form.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use tempfile::NamedTempFile;

use super::compare::Comparison;
use super::export::{self, Results};
use super::relay::RelayReport;
use super::report::Report;
use super::saved;

/// What is said about the result on the command line.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    /// How the result is written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Write the result to a file instead. A name that ends with .json, .csv, .md or .html gets
    /// that form, any other the one of --format. May be given several times.
    #[arg(long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// Also say what changed since an earlier result, beyond the noise.
    #[arg(long, value_name = "OLD.json")]
    compare: Option<PathBuf>,
}

/// The form of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// The layout of the measurement that the bench reproduces.
    Seed,
    /// Everything, for programs.
    Json,
    /// For spreadsheets: a line for each cell.
    Csv,
    /// To paste into an issue.
    Markdown,
    /// A page with plots, in one file.
    Html,
}

/// Places that are known to take a result, and what it is to be compared with.
pub(crate) struct Outputs {
    format: Format,
    targets: Vec<(PathBuf, Target)>,
    old: Option<Report>,
}

impl OutputArgs {
    /// Checks all before the work: what can't be read or written is found out too late else.
    pub(crate) fn prepare(&self) -> Result<Outputs> {
        let old = self.compare.as_deref().map(saved::read_calls).transpose()?;
        let targets = self.output.iter().map(|path| Ok((path.clone(), Target::prepare(path)?)));
        let targets = targets.collect::<Result<Vec<_>>>()?;
        let has_seed = match &targets[..] {
            [] => self.format == Format::Seed,
            _ => targets.iter().any(|(path, _)| self.format.of(path) == Format::Seed),
        };
        ensure!(
            !(has_seed && old.is_some()),
            "--format seed has no place for a comparison; leave out --compare, or take table"
        );
        Ok(Outputs { format: self.format, targets, old })
    }
}

impl Outputs {
    /// For results that can't be compared.
    pub(crate) fn ensure_no_comparison(&self) -> Result<()> {
        ensure!(
            self.old.is_none(),
            "--compare holds results of calls against each other; leave it out for relays"
        );
        Ok(())
    }

    /// Writes the result to all its places.
    pub(crate) fn write(self, report: &Report) -> Result<()> {
        let comparison = self.old.as_ref().map(|old| Comparison::new(old, report));
        let results = Results { report, comparison: comparison.as_ref() };
        self.write_forms(|format| format.render(&results))
    }

    /// Writes a result of relays to all its places.
    pub(crate) fn write_relay(self, report: &RelayReport) -> Result<()> {
        self.write_forms(|format| format.render_relay(report))
    }

    fn write_forms(self, render: impl Fn(Format) -> io::Result<Vec<u8>>) -> Result<()> {
        if self.targets.is_empty() {
            let text = render(self.format)?;
            return match write_whole(io::stdout().lock(), &text) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
                other => other.context("cannot write to standard output"),
            };
        }
        for (path, target) in self.targets {
            let text = render(self.format.of(&path))?;
            target.write(&text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

impl Format {
    /// The form for a file.
    fn of(self, path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Self::Json,
            Some("csv") => Self::Csv,
            Some("md") => Self::Markdown,
            Some("html") => Self::Html,
            _ => self,
        }
    }

    fn render(self, results: &Results<'_>) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        match self {
            Self::Table => export::table::write(&mut text, results)?,
            Self::Seed => export::seed::write(&mut text, results.report)?,
            Self::Json => export::json::write(&mut text, results)?,
            Self::Csv => export::csv::write(&mut text, results)?,
            Self::Markdown => export::markdown::write(&mut text, results)?,
            Self::Html => export::html::write(&mut text, results)?,
        }
        Ok(text)
    }

    fn render_relay(self, report: &RelayReport) -> io::Result<Vec<u8>> {
        use super::relay::export;
        let mut text = Vec::new();
        match self {
            Self::Table => export::table::write(&mut text, report)?,
            Self::Seed => export::seed::write(&mut text, report)?,
            Self::Json => export::json::write(&mut text, report)?,
            Self::Csv => export::csv::write(&mut text, report)?,
            Self::Markdown => export::markdown::write(&mut text, report)?,
            Self::Html => export::html::write(&mut text, report)?,
        }
        Ok(text)
    }
}

/// A place for a result. What is there stays until the result is whole.
#[derive(Debug)]
enum Target {
    /// A file that takes the other's place in one step.
    Replace(PathBuf),
    /// A terminal, a pipe, or a stream that somebody else has opened: written through.
    Through(File),
    /// A file in a folder that takes no other: written over.
    Over(File),
}

impl Target {
    fn prepare(path: &Path) -> Result<Self> {
        let name = path.display();
        Self::open(path).with_context(|| format!("cannot write {name}; give another --output"))
    }

    fn open(path: &Path) -> io::Result<Self> {
        if let Some(stream) = stream_of_process(path) {
            return Ok(Self::Through(stream?));
        }
        // Another descriptor of this process: what is in there is not ours either.
        let is_descriptor = path.starts_with("/dev/fd") || path.starts_with("/proc");
        let existing = match OpenOptions::new().write(true).append(is_descriptor).open(path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let Some(file) = existing else {
            if path.as_os_str().as_bytes().ends_with(b"/") {
                return Err(ErrorKind::IsADirectory.into());
            }
            let path = fs::read_link(path).map_or_else(|_| path.to_owned(), |to| beside(path, &to));
            new_beside(&path)?;
            return Ok(Self::Replace(path));
        };
        if is_descriptor || !file.metadata()?.is_file() {
            return Ok(Self::Through(file));
        }
        // A symbolic link stays one: what it names is replaced.
        let path = fs::canonicalize(path)?;
        match new_beside(&path) {
            Ok(_) => Ok(Self::Replace(path)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(Self::Over(file)),
            Err(error) => Err(error),
        }
    }

    fn write(self, text: &[u8]) -> Result<()> {
        match self {
            Self::Through(file) => write_whole(&file, text)?,
            Self::Over(file) => {
                file.set_len(0)?;
                write_whole(&file, text)?;
            }
            Self::Replace(path) => {
                let mut file = new_beside(&path)?;
                write_whole(&mut file, text)?;
                if let Ok(existing) = fs::metadata(&path) {
                    file.as_file().set_permissions(existing.permissions())?;
                }
                file.persist(&path)?;
            }
        }
        Ok(())
    }
}

/// A stream that this process was started with, if `path` names it. It may well be a regular file,
/// and what is in there is not ours: so it is written on where it stands, not opened anew.
fn stream_of_process(path: &Path) -> Option<io::Result<File>> {
    let stream = match path.to_str()? {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => {
            io::stdout().as_fd().try_clone_to_owned()
        }
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => {
            io::stderr().as_fd().try_clone_to_owned()
        }
        _ => return None,
    };
    Some(stream.map(File::from))
}

/// What a symbolic link at `link` names that says `to`.
fn beside(link: &Path, to: &Path) -> PathBuf {
    link.parent().map_or_else(|| to.to_owned(), |folder| folder.join(to))
}

/// A file beside `path` that vanishes unless it is kept.
fn new_beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(ErrorKind::IsADirectory.into()),
    };
    // What any new file gets; the umask takes from it.
    let mode = Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".shorthaul-").permissions(mode).tempfile_in(folder)
}

fn write_whole(mut target: impl Write, text: &[u8]) -> io::Result<()> {
    target.write_all(text)?;
    target.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_a_name_is_its_form() {
        for (name, format) in [
            ("x.json", Format::Json),
            ("x.csv", Format::Csv),
            ("x.md", Format::Markdown),
            ("a.json/x.html", Format::Html),
            ("x.txt", Format::Seed),
            ("json", Format::Seed),
        ] {
            assert_eq!(Format::Seed.of(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn a_file_stays_until_the_result_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("old"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("old", &link).unwrap();
        let target = Target::prepare(&link).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing lies about");
        target.write(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left");
    }

    #[test]
    fn what_cannot_be_written_is_said_before() {
        let folder = tempfile::tempdir().unwrap();
        for path in [
            folder.path().to_owned(),
            folder.path().join("no/file"),
            folder.path().join("new/"),
            "/".into(),
        ] {
            let error = format!("{:#}", Target::prepare(&path).unwrap_err());
            assert!(error.contains("give another --output"), "{error}");
        }
    }

    #[test]
    fn a_link_to_a_file_that_is_not_there_yet_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("new", &link).unwrap();
        Target::prepare(&link).unwrap().write(b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(folder.path().join("new")).unwrap(), b"new");
    }

    #[test]
    fn devices_are_written_through() {
        let target = Target::prepare(Path::new("/dev/null")).unwrap();
        assert!(matches!(target, Target::Through(_)));
        target.write(b"nothing").unwrap();
    }
}
