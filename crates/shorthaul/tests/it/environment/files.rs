//! Where files can't be made or aren't there.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use shorthaul::Server;

use super::world::World;
use super::{run, run_at, start};

const MOUNT: [&str; 1] = ["--mount"];
const READ_ONLY: &str = "mount --bind / /\nmount -o remount,ro,bind /\ncd /";

/// Where /proc tells nothing, nobody can say whether sealed memory came back, nor whether a store
/// into a client's memory can fail: it is written by pwrite(2).
#[test]
fn without_proc() {
    let world = World::whole().in_namespaces(&MOUNT).after_running("mount -t tmpfs none /proc");
    if let Some(outcomes) = run(&World::whole(), &world) {
        outcomes.all_work();
    }
    let Some(outcomes) = run(&world, &World::whole()) else { return };
    outcomes
        .fail(&["sealed", "slice"], &["FAILED_PRECONDITION", "/proc/self/fd", "offer a buffer"]);
    outcomes.work(&[
        ("map", "fill(write)"),
        ("fresh", "fill(write)"),
        ("auto", "inline, fill(write), fill(write)"),
    ]);
    outcomes.else_work(&["sealed", "slice", "map", "fresh", "auto"]);
}

/// All works from a root that nobody can write, as long as the socket can be made.
#[test]
fn on_a_root_that_is_read_only() {
    let world = World::whole().in_namespaces(&MOUNT).after_running(READ_ONLY);
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return eprintln!("passed over: no /dev/shm");
    };
    let path = folder.path().join("s");
    for (server, client) in [(&world, &world), (&World::whole(), &world)] {
        if let Some(outcomes) = run_at(&path, server, client) {
            outcomes.all_work();
        }
    }
}

#[test]
fn a_folder_that_is_read_only_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let line = format!("mount -t tmpfs -o ro none {}", folder.path().display());
    let world = World::whole().in_namespaces(&MOUNT).after_running(&line);
    let Some(mut server) = start("environment server", &path, &world) else { return };
    let said = server.hear();
    for word in ["Io", "lock file", path.to_str().unwrap(), "Read-only file system"] {
        assert!(said.contains(word), "{said}");
    }
}

/// Shared memory is in memory files, which no mount holds: a small or full /dev/shm is no matter.
#[test]
fn dev_shm_is_of_no_use_to_it() {
    for line in ["mount -t tmpfs -o size=1M none /dev/shm", "mount -t tmpfs -o ro none /dev/shm"] {
        let world = World::whole().in_namespaces(&MOUNT).after_running(line).bytes(2 << 20);
        if let Some(outcomes) = run(&world, &world) {
            outcomes.all_work();
        }
    }
}

/// An `@` is a letter like any other: no name without a file, which networks would divide.
#[test]
fn a_path_with_an_at_sign_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("cd {}", folder.path().display());
    let world = World::whole().after_running(&line);
    let mut server = super::start_server(Path::new("@x"), &world).unwrap();
    assert!(fs::metadata(folder.path().join("@x")).unwrap().file_type().is_socket());
    super::call_from(Path::new("@x"), &world).unwrap().all_work();
    server.close_stdin();
    assert_eq!(server.hear(), "nothing is left");
    assert!(server.wait().success());
    assert!(!folder.path().join("@x").exists());
}

/// Whoever looks at the right moment sees no more permissions than were asked for.
#[test]
fn a_socket_is_never_open_to_others_for_a_moment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let (ended, mut seen) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = 0;
            while !ended.load(Ordering::Relaxed) {
                if let Ok(metadata) = fs::metadata(&path) {
                    assert_eq!(metadata.permissions().mode() & 0o077, 0);
                    seen += 1;
                }
            }
            seen
        });
        for _ in 0..200 {
            drop(Server::bind(&path).unwrap());
        }
        ended.store(true, Ordering::Relaxed);
        seen = watcher.join().unwrap();
    });
    assert!(seen > 0, "nobody has looked");
}
