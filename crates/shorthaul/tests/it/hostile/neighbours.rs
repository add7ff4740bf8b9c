//! Servers and what else there is in their process and on their CPU: other servers, the program
//! that hosts them, clients that hold things and get no time.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::process::{Pid, Signal, kill_process};
use shorthaul::limits::Limits;

use super::descriptor::{check_bytes, memory_file, registered};
use super::raw::{self, Place, Raw};
use super::{PATIENCE, Stage, isolated, pattern, rounds};
use crate::child::{Process, arguments, prepare, say};
use crate::kill::clients;
use crate::service::AnyClient;
use crate::workload::{Way, server_command};

/// Cuts a memory file to nothing and lets it grow again, all the time that `run` takes.
fn while_cut(file: &OwnedFd, bytes: u64, run: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &is_over;
        scope.spawn(move || {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            while !over.load(Ordering::Relaxed) {
                // Refused where the seals are what they should be; a hole is not.
                rustix::fs::ftruncate(file, 0).ok();
                rustix::fs::ftruncate(file, bytes).ok();
                rustix::fs::fallocate(file, mode, 0, bytes / 2).ok();
            }
        });
        // However it ends, the other thread must.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        is_over.store(true, Ordering::Relaxed);
        ran.unwrap();
    });
}

/// One file that may be cut is never mapped nor written; one that may not be is filled while its
/// owner tries. The calls of either server's other clients go on.
#[test]
fn memory_that_is_cut_under_a_fill_ends_no_server() {
    isolated("hostile::neighbours::memory_that_is_cut_under_a_fill_ends_no_server", || {
        let mut first = Stage::new();
        let mut second = Stage::new();
        first.census = super::Census::take();
        second.census = super::Census::take();
        let bytes = 1 << 20;
        let unsealed = memory_file(bytes, SealFlags::empty());
        while_cut(&unsealed, bytes, || {
            let mut raw = Raw::open(&second.path);
            for round in 0..rounds(300, 1000) as u64 {
                raw.send_with(&raw::register(round, bytes), &[unsealed.as_fd()]);
                assert_eq!(raw.registered().code, raw::INVALID_ARGUMENT);
                let call = raw::fill(round, Place::one_shot(bytes), bytes, 1);
                raw.send_with(&call, &[unsealed.as_fd()]);
                let refused = raw.reply();
                assert_eq!(refused.code, raw::INVALID_ARGUMENT, "{refused:?}");
                assert!(refused.message.contains("lacks seals"), "{refused:?}");
            }
        });
        let (mut raw, sealed) = registered(&second);
        while_cut(&sealed, bytes, || {
            for round in 0..rounds(300, 1000) {
                // Through the kept mapping, and through one made for this call.
                raw.send(&raw::fill(1, Place::region(1, 0, bytes), bytes, 1));
                let reply = raw.reply();
                assert_eq!((reply.code, reply.lane), (raw::OK, raw::LANE_FILL_MAP), "{reply:?}");
                raw.send_with(&raw::fill(1, Place::one_shot(bytes), bytes, 1), &[sealed.as_fd()]);
                assert_eq!(raw.reply().code, raw::OK);
                // By the kernel.
                raw.send(&raw::fill_by_writing(1, Place::region(1, 0, bytes), bytes, 1));
                let reply = raw.reply();
                let told = (reply.code, reply.lane, reply.payload_bytes);
                assert_eq!(told, (raw::OK, raw::LANE_FILL_WRITE, bytes), "{reply:?}");
                if round % 100 == 0 {
                    first.honest_calls();
                    second.honest_calls();
                }
            }
        });
        raw.send(&raw::fill(1, Place::region(1, 0, bytes), bytes, 9));
        assert_eq!(raw.reply().payload_bytes, bytes);
        check_bytes(&sealed, 0, &pattern(bytes as usize, 9));
        raw.send(&raw::fill_by_writing(1, Place::region(1, 0, bytes), bytes, 10));
        assert_eq!(raw.reply().payload_bytes, bytes);
        check_bytes(&sealed, 0, &pattern(bytes as usize, 10));
        drop((raw, sealed, unsealed));
        first.ends_clean();
        second.ends_clean();
    });
}

/// Signal dispositions are the host's. A shell starts it with all signals ignored, which Rust's own
/// start leaves so: a handler that the library installed would show, and so would a reset.
#[test]
fn no_signal_is_taken_from_the_program_that_hosts_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let ignore = "trap '' HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM TSTP \
                  TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS; exec \"$@\"";
    command.args(["-c", ignore, "sh"]).arg(std::env::current_exe().unwrap()).args(arguments());
    prepare(&mut command, "host", folder.path());
    let mut child = Process::spawn(command);
    assert_eq!(child.hear(), "as before");
    assert!(child.wait().success());
}

/// What the child does: everything that a server and its clients do with memory.
pub(crate) fn host_a_server(folder: &Path) {
    let before = signals();
    let ignored = u64::from_str_radix(before[1].split_whitespace().nth(1).unwrap(), 16).unwrap();
    // SIGBUS, SIGSEGV, SIGPIPE, SIGXFSZ.
    for signal in [7, 11, 13, 25] {
        assert!(ignored >> (signal - 1) & 1 == 1, "signal {signal}: {before:?}");
    }
    assert!(folder.exists());
    let mut stage = Stage::new();
    let (mut raw, sealed) = registered(&stage);
    while_cut(&sealed, 1 << 20, || {
        for id in 0..50 {
            raw.send(&raw::fill(id, Place::region(1, 0, 1 << 20), 1 << 20, 1));
            assert_eq!(raw.reply().code, raw::OK);
            raw.send(&raw::echo(id, Place::inline(1 << 20), raw::Upload::region(1, 0, 1 << 20)));
            assert_eq!(raw.reply().code, raw::OK);
        }
    });
    let mut sealing = Raw::open_with(&stage.path, raw::SEALED);
    sealing.send(&raw::fill(1, Place::sealed(10_000), 10_000, 1));
    let reply = sealing.reply();
    assert_eq!(reply.lane, raw::LANE_SEALED);
    stage.honest_calls();
    assert_eq!(signals(), before, "while it serves");
    drop((raw, sealing, reply, stage));
    assert_eq!(signals(), before, "after it has served");
    say("as before");
}

/// What this thread blocks, and this process ignores and catches.
fn signals() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let is_wanted = |line: &&str| ["SigBlk", "SigIgn", "SigCgt"].contains(&&line[..6]);
    let long = status.lines().filter(|line| line.len() > 6);
    long.filter(is_wanted).map(str::to_owned).collect()
}

/// A client that is stopped in the middle of whatever it does, with the least right to the one CPU
/// that all share, holds nothing that the server needs. Its own calls go on where it was stopped,
/// which makes some of its system calls end early: it ends itself if one fails.
#[test]
fn a_client_that_gets_no_time_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let cpu = first_cpu();
    let server = server_command(&path, 2, Limits::default().calls_max);
    let mut server = Process::spawn(on_cpu(cpu, server, &["taskset", "-c"]));
    assert_eq!(server.hear(), "serving");
    for way in Way::ALL {
        // Calls that hand over a descriptor wait for one another, and for no others.
        let others_way = if matches!(way, Way::Pipe | Way::Socket) { Way::FillMap } else { way };
        let slow = clients::command(&path, way);
        let mut slow = Process::spawn(on_cpu(cpu, slow, &["nice", "-n", "19", "taskset", "-c"]));
        slow.hear();
        let pid = Pid::from_raw(slow.id() as i32).unwrap();
        let mut honest =
            [true, false].map(|is_direct| AnyClient::connect(&path, is_direct).unwrap());
        for round in 0..rounds(15, 200) as u64 {
            thread::sleep(Duration::from_micros(round * 37 % 900));
            kill_process(pid, Signal::STOP).unwrap();
            for client in &mut honest {
                others_way.call(client.caller(), (BYTES, round as u8), PATIENCE).unwrap();
            }
            kill_process(pid, Signal::CONT).unwrap();
        }
        slow.kill();
    }
    server.kill();
}

/// `command` under `prefix` and the number of a CPU, with its environment.
fn on_cpu(cpu: u32, command: Command, prefix: &[&str]) -> Command {
    let mut wrapped = Command::new(prefix[0]);
    wrapped.args(&prefix[1..]).arg(cpu.to_string()).arg(command.get_program());
    wrapped.args(command.get_args());
    for (name, value) in command.get_envs() {
        wrapped.env(name, value.unwrap());
    }
    wrapped
}

fn first_cpu() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let digits = |c: char| !c.is_ascii_digit();
    allowed.unwrap().trim().split(digits).next().unwrap().parse().unwrap()
}

const BYTES: usize = 300_000;
