//! Children that fork(2) makes without exec(2): what they inherit is their parent's.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use shorthaul::{Client, DirectClient, Error, InboundCall, Server, Status};
use shorthaul_platform::memory::{Draft, Memfd, generation};
use shorthaul_platform::store::Store;

/// Runs `work` in a child, which has this thread alone; the child ends well if it returns true.
fn in_a_child(work: impl FnOnce() -> bool) {
    // SAFETY: the child calls what glibc keeps usable after a fork (its allocator among that), and
    // the code under test, and leaves by _exit(2): nothing of the parent's is torn down in it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the process without running anything.
        unsafe { libc::_exit(i32::from(!outcome.is_ok_and(|is_well| is_well))) };
    }
    assert!(child > 0);
    let mut status = 0;
    for _ in 0..6000 {
        // SAFETY: the status is a local variable.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            assert_eq!(status, 0, "the child's status");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: it is our child, and was not waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    panic!("the child hangs");
}

fn serve(call: &mut InboundCall) -> Result<(), Status> {
    let value = call.request()[0];
    call.payload(BYTES)?.fill(value, BYTES)?;
    call.reply(&[value])
}

fn is_refused<T>(outcome: Result<T, Error>) -> bool {
    let parent = std::os::unix::process::parent_id();
    let words = format!("belongs to process {parent}");
    outcome.err().is_some_and(|error| {
        let text = error.to_string();
        matches!(error, Error::Misuse(_)) && text.contains(&words) && text.contains("connect anew")
    })
}

#[test]
fn a_child_has_a_number_of_its_own() {
    let ours = generation();
    in_a_child(|| {
        let theirs = generation();
        let mut is_another = false;
        in_a_child(|| generation() != theirs && generation() != ours);
        is_another |= theirs != ours && generation() == theirs;
        is_another
    });
    assert_eq!(generation(), ours);
}

/// The range may have something of the child's own by now.
#[test]
fn a_child_unmaps_nothing_that_it_was_not_given() {
    let mapping = Memfd::create("test", BYTES).unwrap().map().unwrap();
    let mut draft = Draft::create("test", BYTES).unwrap();
    draft.as_mut_slice().unwrap().fill(1);
    let at = std::ptr::from_ref(&draft.as_mut_slice().unwrap()[0]).cast_mut();
    in_a_child(|| {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: maps only where nothing is.
        let own = unsafe { libc::mmap(at.cast(), BYTES, protection, flags, -1, 0) };
        assert_eq!(own, at.cast(), "the parent's mapping was inherited");
        let is_refused = draft.as_mut_slice().is_err();
        drop((mapping, draft));
        // SAFETY: mapped above.
        unsafe { at.write_volatile(7) };
        is_refused
    });
}

#[test]
fn a_child_can_not_touch_a_mapping() {
    let mapping = Memfd::create("test", BYTES).unwrap().map().unwrap();
    in_a_child(|| {
        let touch = || mapping.fill(0..BYTES, 1, Store::Ordinary);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(touch)).is_err()
    });
    assert_eq!(mapping.sum(0..BYTES, 1), 0);
}

/// Refused by name, at once; and what the child drops is still there for its parent.
#[test]
fn a_child_uses_clients_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = Server::bind(&path).unwrap().start(serve).unwrap();
    let mut direct = DirectClient::connect(&path).unwrap();
    let threaded = Client::connect(&path).unwrap();
    let (buffer, other) = (direct.buffer(BYTES).unwrap(), threaded.buffer(BYTES).unwrap());
    for value in 1..4 {
        // A buffer is kept for later calls.
        assert_eq!(direct.call("").request(&[value]).auto(BYTES).send().unwrap().len(), BYTES);
    }
    let mut all = Some((server, direct, threaded, buffer, other));
    in_a_child(|| {
        let (server, mut direct, threaded, buffer, other) = all.take().unwrap();
        let error = |sent: Result<_, shorthaul::CallError>| sent.map_err(Error::from);
        let payload = [1; BYTES];
        let is_well = is_refused(error(direct.call("").request(&[9]).auto(BYTES).send()))
            && is_refused(error(direct.call("").request(&[9]).payload(&payload).send()))
            && is_refused(error(direct.call("").request(&[9]).inline(BYTES).send()))
            && is_refused(direct.buffer(BYTES))
            && is_refused(direct.poll(Duration::ZERO))
            && is_refused(error(threaded.call("").request(&[9]).inline(BYTES).send()))
            && is_refused(threaded.buffer(BYTES))
            && threaded.notice(Duration::from_secs(60)).is_none();
        drop((buffer, other, threaded, direct, server));
        let mut anew = DirectClient::connect(&path).unwrap();
        let reply = anew.call("").request(&[5]).inline(BYTES).send().unwrap();
        is_well && reply.sum(1) == 5 * BYTES as u64
    });
    let (server, mut direct, threaded, buffer, other) = all.unwrap();
    assert!(path.exists(), "the child has removed the socket's file");
    let reply = direct.call("").request(&[2]).into(buffer).send().unwrap();
    assert_eq!((reply.response(), reply.sum(1)), (&[2][..], 2 * BYTES as u64));
    let reply = threaded.call("").request(&[3]).into(other).send().unwrap();
    assert_eq!((reply.response(), reply.sum(1)), (&[3][..], 3 * BYTES as u64));
    assert!(server.stop(Duration::from_secs(10)));
    assert!(!path.exists());
}

const BYTES: usize = 65_536;
