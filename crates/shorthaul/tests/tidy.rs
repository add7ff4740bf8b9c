//! The style as a test: what can be checked by reading the sources is checked here.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// The library's modules, lowest first: each may use those before it.
const LAYERS: [&str; 24] = [
    "sync",
    "error",
    "limits",
    "meter",
    "parts",
    "payload",
    "wire",
    "lane",
    "object",
    "ring",
    "waiting",
    "connection",
    "trust",
    "address",
    "stream",
    "inbox",
    "threads",
    "origin",
    "undertaker",
    "relay",
    "server",
    "client",
    "placement",
    "lib",
];

const LINE_CHARS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 800;

struct Source {
    path: PathBuf,
    text: String,
}

/// Every Rust file of the workspace that belongs to it.
fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root().join("crates"), &mut found);
    assert!(found.len() > 50, "the sources were not found");
    found
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn collect(folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push(Source { path, text });
        }
    }
}

/// Fails with everything that was found, not just the first.
fn report(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn files_begin_with_what_they_are() {
    let without = sources().into_iter().filter(|source| !source.text.starts_with("//!"));
    report(&without.map(|source| source.path.display().to_string()).collect::<Vec<_>>());
}

#[test]
fn lines_functions_and_files_are_short() {
    let mut faults = Vec::new();
    for Source { path, text } in sources() {
        let path = path.display();
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() > FILE_LINES_MAX {
            faults.push(format!("{path}: {} lines", lines.len()));
        }
        for (index, line) in lines.iter().enumerate() {
            if line.chars().count() > LINE_CHARS_MAX {
                faults.push(format!("{path}:{}: over {LINE_CHARS_MAX} characters", index + 1));
            }
        }
        for (start, count) in functions(&lines) {
            if count > FUNCTION_LINES_MAX {
                faults.push(format!("{path}:{start}: a function of {count} lines"));
            }
        }
    }
    report(&faults);
}

/// First line and number of lines of each function, by the indentation of its end.
fn functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let is_function = ["fn ", "unsafe fn ", "const fn "].iter().any(|word| {
            code.split("pub").last().is_some_and(|rest| {
                rest.trim_start_matches("(crate)")
                    .trim_start_matches("(super)")
                    .trim_start()
                    .starts_with(word)
            })
        });
        let indent = line.len() - code.len();
        let end = format!("{}}}", " ".repeat(indent));
        if is_function && !code.ends_with(';') && !code.ends_with('}') {
            let rest = lines[start..].iter().position(|line| *line == end);
            found.extend(rest.map(|count| (start + 1, count + 1)));
        }
    }
    found
}

#[test]
fn nothing_is_left_undone() {
    let words = ["todo!", "unimplemented!", "dbg!(", "FIXME", "XXX", "#[ignore"];
    let mut faults = Vec::new();
    for Source { path, text } in sources() {
        if path.ends_with("tests/tidy.rs") {
            continue;
        }
        let left = words.iter().filter(|word| text.contains(**word));
        faults.extend(left.map(|word| format!("{}: {word}", path.display())));
    }
    report(&faults);
}

#[test]
fn unsafe_code_is_on_the_floor() {
    for name in ["shorthaul/src/lib.rs", "shorthaul-cli/src/main.rs"] {
        let text = fs::read_to_string(root().join("crates").join(name)).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name} doesn't forbid unsafe code");
    }
}

#[test]
fn modules_use_only_lower_ones() {
    let library = root().join("crates/shorthaul/src");
    let mut faults = Vec::new();
    for Source { path, text } in sources() {
        let Ok(inside) = path.strip_prefix(&library) else {
            continue;
        };
        let rank = layer(inside.iter().next().unwrap().to_str().unwrap());
        for used in text.split("crate::").skip(1) {
            let name: String =
                used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // Items re-exported at the root are used from outside only.
            let is_upward = LAYERS.contains(&name.as_str()) && layer(&name) > rank;
            if is_upward {
                faults.push(format!("{} uses {name}, which is above it", inside.display()));
            }
        }
    }
    report(&faults);
}

fn layer(name: &str) -> usize {
    let name = name.trim_end_matches(".rs");
    let found = LAYERS.iter().position(|layer| *layer == name);
    found.unwrap_or_else(|| panic!("{name} is not among the layers of tests/tidy.rs"))
}

#[test]
fn the_architecture_names_every_module() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut faults = Vec::new();
    for crate_name in ["shorthaul-platform", "shorthaul", "shorthaul-cli"] {
        for entry in fs::read_dir(root().join("crates").join(crate_name).join("src")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if !["lib", "main"].contains(&name) && !text.contains(name) {
                faults.push(format!("ARCHITECTURE.md doesn't say what {crate_name} {name} is"));
            }
        }
    }
    report(&faults);
}

#[test]
fn no_page_size_is_assumed() {
    let mut faults = Vec::new();
    let memory = root().join("crates/shorthaul-platform/src/memory");
    for Source { path, text } in sources() {
        if path.starts_with(&memory) {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = code.take_while(|line| !line.contains("#[cfg(test)]"));
            let words = ["4096", "4_096", "0x1000", "0xfff", "1 << 12", "4 << 10", ">> 12"];
            let assumed = code.filter(|line| words.iter().any(|word| line.contains(word)));
            faults.extend(assumed.map(|line| format!("{}: {line}", path.display())));
        }
    }
    report(&faults);
}

/// Clocks that can be set say nothing about time that has passed, and a umask is all threads'.
#[test]
fn nothing_is_used_that_others_set_for_the_whole_process() {
    let mut faults = Vec::new();
    for Source { path, text } in sources() {
        let is_ours = ["crates/shorthaul/src", "crates/shorthaul-platform/src"];
        if is_ours.iter().any(|part| path.starts_with(root().join(part))) {
            let words = ["SystemTime", "CLOCK_REALTIME", "ClockId::Realtime", "umask("];
            let found = words.iter().filter(|word| text.contains(**word));
            faults.extend(found.map(|word| format!("{}: {word}", path.display())));
        }
    }
    report(&faults);
}

/// Which functions of the floor give slices of mapped memory, and by what right.
const SLICES: [(&str, &str); 6] = [
    // Memory of this process alone, until it is sealed.
    ("draft.rs", "pub fn as_mut_slice(&mut self) -> io::Result<&mut [u8]>"),
    // Memory that nobody can write any more.
    ("sealed.rs", "fn deref(&self) -> &[u8]"),
    // By the word of who made the token, which takes unsafe code.
    ("mapping.rs", "pub fn trusted(&self, range: Range<usize>, _trust: Trust) -> &[u8]"),
    ("mapping.rs", "pub fn trusted_mut(&self, range: Range<usize>, _trust: Trust) -> &mut [u8]"),
    // Memory of this process alone.
    ("private.rs", "fn deref(&self) -> &[u8]"),
    ("private.rs", "fn deref_mut(&mut self) -> &mut [u8]"),
];

/// Nobody gets a reference into memory that somebody else can write: what is checked there could be
/// something else when it is used.
#[test]
fn no_slice_of_memory_that_others_write_is_given_out() {
    let memory = root().join("crates/shorthaul-platform/src/memory");
    let mut faults = Vec::new();
    let mut found = 0;
    for Source { path, text } in sources().into_iter().filter(|s| s.path.starts_with(&memory)) {
        let file = path.file_name().unwrap().to_str().unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let one_line = code.split_whitespace().collect::<Vec<_>>().join(" ");
        for (at, _) in one_line.match_indices("fn ") {
            let signature = one_line[at..].split(['{', ';']).next().unwrap().trim_end();
            let Some((_, result)) = signature.split_once("->") else { continue };
            let is_public = one_line[..at].ends_with("pub ");
            let is_slice = result.contains("&[u8]") || result.contains("&mut [u8]");
            let is_pointer = is_public && result.contains('*');
            if !is_slice && !is_pointer {
                continue;
            }
            found += 1;
            let is_it = |(known, text): &(&str, &str)| file == *known && text.ends_with(signature);
            if !SLICES.iter().any(is_it) {
                faults.push(format!("{}: {signature}", path.display()));
            }
        }
    }
    assert_eq!(found, SLICES.len(), "the functions were not found");
    report(&faults);
    let trust = fs::read_to_string(memory.join("trust.rs")).unwrap();
    assert!(trust.contains("pub unsafe fn vouch() -> Self") && trust.contains("Trust(())"));
}

/// No handler of the library's could stand before the host's, and no disposition is changed: that
/// is for programs, which the command is.
#[test]
fn no_signal_handler_is_installed() {
    let mut faults = Vec::new();
    let for_programs = "libc::signal(libc::SIGXFSZ, libc::SIG_IGN)";
    for Source { path, text } in sources() {
        let is_source = path.components().any(|part| part.as_os_str() == "src");
        let is_program = path.ends_with("shorthaul-cli/src/main.rs");
        if is_source && !is_program {
            let words = ["sigaction", "signal(lib", "signal_hook", "SIG_IGN", "sigaltstack"];
            let code = text.split("#[cfg(test)]").next().unwrap().replacen(for_programs, "", 1);
            let set = words.iter().filter(|word| code.contains(**word));
            faults.extend(set.map(|word| format!("{}: {word}", path.display())));
            let calls = code.matches("ignore_file_size_signal(").count();
            if calls > usize::from(path.ends_with("src/signals.rs")) {
                faults.push(format!("{} ignores a signal of its host's", path.display()));
            }
        }
    }
    report(&faults);
}

/// What plays the hostile peer knows the protocol from its document, not from the library.
#[test]
fn hostile_peers_speak_for_themselves() {
    let text = fs::read_to_string(root().join("crates/shorthaul/tests/it/hostile/raw.rs")).unwrap();
    assert!(text.contains("docs/PROTOCOL.md"));
    let uses = text.lines().filter(|line| line.starts_with("use "));
    report(&uses.filter(|line| line.contains("shorthaul")).map(str::to_owned).collect::<Vec<_>>());
    assert!(!text.contains("shorthaul::") && !text.contains("crate::"));
}

/// Each test that a document names as holding a promise is there.
#[test]
fn promises_are_held_by_tests_that_exist() {
    let document = fs::read_to_string(root().join("docs/SECURITY.md")).unwrap();
    let tables = document.lines().filter(|line| line.starts_with('|'));
    let quoted = tables.flat_map(|line| line.split('`').skip(1).step_by(2));
    let named: Vec<&str> = quoted.filter(|name| is_test_name(name)).collect();
    assert!(named.len() > 100, "the tests were not found");
    let sources = sources();
    let missing = named.into_iter().filter(|name| {
        let (modules, test) = name.rsplit_once("::").unwrap();
        let (kind, inside) = modules.split_once("::").unwrap_or((modules, ""));
        let (folder, module) = match kind {
            "floor" => ("crates/shorthaul-platform/tests", inside),
            "lib" => ("crates/shorthaul/src", inside),
            "tidy" => ("crates/shorthaul/tests", "tidy"),
            _ => ("crates/shorthaul/tests/it", modules),
        };
        let module = root().join(folder).join(module.replace("::", "/"));
        let is_there = |Source { path, text }: &Source| {
            let is_its = path.with_extension("") == module || path.starts_with(&module);
            is_its
                && [format!("fn {test}("), format!("    {test}: ")]
                    .iter()
                    .any(|it| text.contains(it))
        };
        sources.iter().all(|source| !is_there(source))
    });
    report(&missing.map(str::to_owned).collect::<Vec<_>>());
}

fn is_test_name(text: &str) -> bool {
    text.contains("::")
        && text.chars().all(|c| c.is_ascii_lowercase() || "_:0123456789".contains(c))
}
