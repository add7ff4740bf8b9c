//! What is said of machines that are invented: the forms lie in `golden/`. After a change that is
//! meant, run the tests once with UPDATE_GOLDEN=1 and read the difference.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Rlimit;
use shorthaul_platform::memory::{huge_page_bytes, page_bytes};
use shorthaul_platform::socket::Credentials;
use shorthaul_platform::store::Instructions;

use super::cgroup::Memory;
use super::finding::{Finding, Findings, Verdict};
use super::{json, limits, machine, memory, moving, pages, surroundings, system, text};

const PLAIN: Instructions = Instructions { strings: false, wide_sums: true, streaming: true };

/// A finding of each verdict, and what is wrapped and what is not.
fn invented() -> Findings {
    Findings(vec![
        machine::kernel("6.18.44"),
        machine::cpu_stores(PLAIN),
        machine::cpus(1, 7),
        memory::overcommit(Ok("2".into())),
        limits::open_files(Rlimit { current: Some(1024), maximum: Some(1 << 20) }),
        limits::file_size(Some(0)),
        limits::mappings(Err("/proc/sys/vm/max_map_count can't be read: No such file".into())),
        surroundings::seccomp(Ok("Seccomp:\t2\nSeccomp_filters:\t3".into())),
        surroundings::peer_is(&Credentials { pid: None, uid: 65534, gid: 65534 }, 65534),
    ])
}

#[test]
fn text_is_golden_at_two_widths() {
    for width in [80, 140] {
        let mut written = Vec::new();
        text::write(&mut written, &invented(), width).unwrap();
        let written = String::from_utf8(written).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        let too_long = |line: &&&str| line.chars().count() > width && !line.contains('`');
        let (conclusion, above) = lines.split_last().unwrap();
        assert_eq!(above.iter().find(too_long), None);
        assert_eq!(*conclusion, invented().conclusion());
        check(&format!("text-{width}.txt"), &written);
    }
}

#[test]
fn json_is_golden() {
    let mut written = Vec::new();
    json::write(&mut written, &invented()).unwrap();
    check("json.txt", &String::from_utf8(written).unwrap());
}

#[test]
fn the_conclusion_names_each_lost_lane_once() {
    let fine = || machine::kernel("6.18.44");
    assert_eq!(Findings(vec![fine()]).conclusion(), "Every lane works.");
    let slower = Findings(vec![fine(), machine::cpus(1, 0), machine::kernel("?")]);
    assert_eq!(slower.conclusion(), "Every lane works; 1 degraded, 1 unknown.");
    let nothing = || limits::file_size(Some(1));
    let lost = "No fill lane, no sealed answers, no sealed uploads (file-size).";
    assert_eq!(Findings(vec![nothing(), nothing()]).conclusion(), lost);
    let nobody = surroundings::peer_is(&Credentials { pid: None, uid: 1, gid: 1 }, 1);
    let both = "No fill lane, no sealed answers, no sealed uploads (file-size), \
                no connections by the default policy (peer-credentials); 1 degraded.";
    assert_eq!(Findings(vec![nothing(), machine::cpus(1, 0), nobody]).conclusion(), both);
}

fn verdicts<const N: usize>(findings: [Finding; N]) -> [Verdict; N] {
    findings.map(|finding| finding.verdict)
}

use Verdict::{Degraded, Missing, Ok as Fine, Unknown};

#[test]
fn kernels_are_judged_by_what_they_brought() {
    let kernels = ["5.13.0-x", "6.2.9", "6.3.0", "7.0", "seven"].map(machine::kernel);
    let is_untried = |index: usize| kernels[index].meaning.contains("nobody has tried");
    assert!(is_untried(0) && !is_untried(1), "{kernels:?}");
    assert_eq!(verdicts(kernels), [Degraded, Degraded, Fine, Fine, Unknown]);
}

#[test]
fn all_cpus_must_be_allowed_and_be_more_than_one() {
    let cpus = [(8, 0), (7, 1), (1, 0)].map(|(allowed, not)| machine::cpus(allowed, not));
    assert_eq!(verdicts(cpus), [Fine, Degraded, Degraded]);
    let all = Instructions { strings: true, ..PLAIN };
    assert_eq!(verdicts([all, PLAIN].map(machine::cpu_stores)), [Fine, Degraded]);
}

#[test]
fn overcommit_that_is_strict_or_hidden_is_degraded() {
    let modes = [Ok("0"), Ok("1"), Ok("2"), Err("hidden")];
    let found =
        modes.map(|mode| memory::overcommit(mode.map(str::to_owned).map_err(str::to_owned)));
    assert_eq!(verdicts(found), [Fine, Fine, Degraded, Degraded]);
}

#[test]
fn limits_are_held_against_what_a_server_can_need() {
    let files = |current, maximum| limits::open_files(Rlimit { current, maximum });
    let (low, high) = (files(Some(8511), None), files(Some(8512), Some(8512)));
    assert!(low.remedy.as_ref().unwrap().contains("`ulimit -n 8512`"));
    let hard = files(Some(64), Some(64));
    assert!(hard.remedy.as_ref().unwrap().contains("LimitNOFILE=8512"));
    assert_eq!(verdicts([low, high, hard, files(None, None)]), [Degraded, Fine, Degraded, Fine]);
    let sizes = [Some(0), Some(1 << 20), Some(16 << 30), None].map(limits::file_size);
    assert_eq!(verdicts(sizes), [Missing, Degraded, Fine, Fine]);
    let spaces = [Some(1 << 30), Some(64 << 30), None].map(limits::address_space);
    assert_eq!(verdicts(spaces), [Degraded, Fine, Fine]);
    let mappings = [Ok(2047), Ok(2048), Err("hidden".to_owned())].map(limits::mappings);
    assert_eq!(verdicts(mappings), [Degraded, Fine, Unknown]);
}

#[test]
fn a_container_is_judged_by_what_is_left() {
    let group = |used| Some(Memory { limit: 12 << 30, used, folder: PathBuf::from("/cg") });
    let groups = [Ok(group(4 << 30)), Ok(group((4 << 30) + 1)), Ok(group(u64::MAX)), Ok(None)];
    let found = groups.map(limits::group_memory);
    assert!(found[2].found.contains("0 B left"), "{:?}", found[2]);
    assert_eq!(verdicts(found), [Fine, Degraded, Degraded, Fine]);
    assert_eq!(limits::group_memory(Err("hidden".into())).verdict, Unknown);
}

#[test]
fn pipes_and_pages_are_judged_by_what_came() {
    let chunk = shorthaul::relay::CHUNK_BYTES;
    assert_eq!(verdicts([chunk, chunk - 1].map(moving::granted)), [Fine, Degraded]);
    let refused = io::Error::from(io::ErrorKind::OutOfMemory);
    let touches = [Ok(huge_page_bytes()), Ok(page_bytes()), Err(refused)];
    let touches = touches.map(|touched| pages::shmem(touched, false));
    assert_eq!(verdicts(touches), [Fine, Degraded, Unknown]);
    assert_eq!(verdicts([pages::shmem(Ok(page_bytes()), true)]), [Fine]);
}

#[test]
fn who_has_no_name_meets_nobody() {
    let peer = |uid| surroundings::peer_is(&Credentials { pid: None, uid, gid: 0 }, 65534);
    assert_eq!(verdicts([peer(0), peer(65534)]), [Fine, Missing]);
}

#[test]
fn words_of_the_kernel_and_choices_are_cut_out() {
    assert_eq!(system::words(&io::Error::from_raw_os_error(1)), "Operation not permitted");
    assert_eq!(system::chosen("always within_size [never] deny"), "never");
    assert_eq!(system::version_in("6.18.44-fc-v782"), Some((6, 18)));
    assert_eq!(system::version_in("6.18+"), Some((6, 18)));
}

fn check(name: &str, written: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor/golden");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(folder.join(name), written).unwrap();
    }
    let golden = std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(written == golden, "{name} is written otherwise:\n{written}");
}
