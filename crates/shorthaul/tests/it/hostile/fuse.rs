//! A file on a file system that its own owner serves, and who never answers.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shorthaul::{Descriptors, DirectClient, ServerOptions};

use super::raw::{self, Place, Raw, Upload};
use super::{PATIENCE, Stage};
use crate::child::{Process, arguments, prepare, say};

/// Mounts what its standard input serves, in a mount namespace that ends with it, and goes on as
/// this binary without it: so the file system ends when its server does, whoever waits for it.
const MOUNT: &str = r#"
    options=fd=0,rootmode=40000,user_id=0,group_id=0
    mount -i -t fuse -o $options silent "$1" || { echo "@@ no mount"; exit 0; }
    shift
    exec "$@" < /dev/null
"#;

#[test]
fn a_file_whose_file_system_never_answers_holds_nobody_up() {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let has_unshare = Command::new("unshare").arg("--version").output().is_ok();
    let Ok(device) = device.map_err(|error| eprintln!("no FUSE here: {error}")) else { return };
    if !rustix::process::geteuid().is_root() || !has_unshare {
        eprintln!("no file system can be mounted here: not tried");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(folder.path());
    command.arg(std::env::current_exe().unwrap()).args(arguments());
    prepare(&mut command, "silent files", folder.path());
    command.stdin(Stdio::from(device.try_clone().unwrap()));
    let file_system = FileSystem::serve(device);
    let mut child = Process::spawn(command);
    match child.hear().as_str() {
        "no mount" => return eprintln!("FUSE can't be mounted here: not tried"),
        heard => assert_eq!(heard, "served"),
    }
    drop(file_system);
    assert!(child.wait().success());
}

/// What the child does.
pub(crate) fn offer_silent_files(folder: &Path) {
    let options = ServerOptions { descriptors: Descriptors::Any, ..ServerOptions::default() };
    let mut stage = Stage::with(ServerOptions { reactors: 1, workers: 1, ..options });
    let mut options = OpenOptions::new();
    let readable = options.read(true).open(folder.join("file")).unwrap();
    let writable = options.write(true).open(folder.join("file")).unwrap();
    let mut raw = Raw::open(&stage.path);
    for file in [&readable, &writable] {
        for _ in 0..3 {
            refuse(&stage, &mut raw, file);
            let mut client = DirectClient::connect(&stage.path).unwrap();
            let call = client.call("echo").request(b"alive").deadline(PATIENCE);
            assert_eq!(call.send().unwrap().response(), b"alive");
            stage.honest_calls();
        }
    }
    say("served");
}

fn refuse(stage: &Stage, raw: &mut Raw, file: &File) {
    raw.send_with(&raw::register(1, 4096), &[file.as_fd()]);
    assert_eq!(raw.registered().code, raw::INVALID_ARGUMENT);
    for frame in [
        raw::fill(1, Place::one_shot(4096), 16, 1),
        raw::fill(1, Place::given(100), 100, 1),
        raw::echo(1, Place::inline(4096), Upload::sealed(0, 4096)),
    ] {
        raw.send_with(&frame, &[file.as_fd()]);
        let refused = raw.reply();
        assert_eq!(refused.code, raw::INVALID_ARGUMENT, "{refused:?}");
    }
    // In a frame that has no use for it, which is the end of its connection.
    let mut other = Raw::open(&stage.path);
    other.send_with(&raw::of_id(raw::CANCEL, 1), &[file.as_fd()]);
    assert_eq!(other.goodbye().code, raw::INVALID_ARGUMENT);
}

/// A file system with one file, whose server falls silent once that has been opened twice. When it
/// is dropped, the kernel ends all waits for it.
struct FileSystem {
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl FileSystem {
    fn serve(mut device: File) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let server = std::thread::spawn(move || {
            let (mut request, mut opened) = (vec![0; 1 << 20], 0);
            let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            // Not for ever: until it ends, nothing that waits for it can be killed.
            let until = Instant::now() + PATIENCE * 2;
            while !seen.load(Ordering::Relaxed) && Instant::now() < until {
                let mut polled = [PollFd::new(&device, PollFlags::IN)];
                let is_ready = poll(&mut polled, Some(&timeout)).unwrap_or(0) > 0;
                // Before it is mounted, nothing can be read.
                if !is_ready || !polled[0].revents().contains(PollFlags::IN) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    continue;
                }
                let Ok(bytes) = device.read(&mut request) else { continue };
                if opened < 2
                    && let Some(answer) = answer(&request[..bytes])
                {
                    opened += u32::from(raw::u32_at(&request, 4) == OPEN);
                    device.write_all(&answer).ok();
                }
            }
        });
        Self { is_over, server: Some(server) }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.server.take().unwrap().join().unwrap();
    }
}

/// The answer to one request of the kernel, as linux/fuse.h lays them out.
fn answer(request: &[u8]) -> Option<Vec<u8>> {
    let opcode = raw::u32_at(request, 4);
    let unique = raw::u64_at(request, 8);
    let is_root = raw::u64_at(request, 16) == 1;
    let zeros = |bytes| vec![0; bytes];
    let attributes = |is_root: bool| {
        let mut found = zeros(88);
        let (number, mode, size) = if is_root { (1, 0o40755, 0) } else { (2, 0o100_666, 4096) };
        found[..8].copy_from_slice(&u64::to_le_bytes(number));
        found[8..16].copy_from_slice(&u64::to_le_bytes(size));
        found[60..64].copy_from_slice(&u32::to_le_bytes(mode));
        found[64..68].copy_from_slice(&1_u32.to_le_bytes());
        found
    };
    let (error, body) = match opcode {
        FORGET => return None,
        LOOKUP => {
            let mut entry = zeros(40);
            entry[..8].copy_from_slice(&2_u64.to_le_bytes());
            (0, [entry, attributes(false)].concat())
        }
        GETATTR => (0, [zeros(16), attributes(is_root)].concat()),
        OPEN => (0, zeros(16)),
        INIT => {
            let mut init = zeros(64);
            init[..4].copy_from_slice(&7_u32.to_le_bytes());
            init[4..8].copy_from_slice(&31_u32.to_le_bytes());
            init[20..24].copy_from_slice(&65_536_u32.to_le_bytes());
            (0, init)
        }
        _ => (-libc::ENOSYS, Vec::new()),
    };
    let mut answer = (16 + body.len() as u32).to_le_bytes().to_vec();
    answer.extend_from_slice(&error.to_le_bytes());
    answer.extend_from_slice(&unique.to_le_bytes());
    answer.extend_from_slice(&body);
    Some(answer)
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const INIT: u32 = 26;
