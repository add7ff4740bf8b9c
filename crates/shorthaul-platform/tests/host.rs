//! The program around this library: its own signal handlers stay its own.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use shorthaul_platform::memory::{Draft, FileView, Memfd, PeerMemfd, page_bytes};
use shorthaul_platform::store::Store;
use shorthaul_platform::transfer::WriteWay;

static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Notes the fault and puts a page where there was none.
extern "C" fn on_fault(_: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    FAULTS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel has just made it for this handler.
    let about = unsafe { &*about };
    // SAFETY: of SIGBUS it has an address.
    let at = unsafe { about.si_addr() } as usize;
    // SAFETY: touches no memory of ours.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let start = (at & !(page - 1)) as *mut libc::c_void;
    // SAFETY: only the one mapping of this test can fault, and its page is replaced.
    unsafe { libc::mmap(start, page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
}

/// Everything that is done with memory which others can change.
fn use_memory() {
    let bytes = 64 << 10;
    let ours = Memfd::create_backed("host", bytes).unwrap();
    let copy = ours.as_fd().try_clone_to_owned().unwrap();
    let peer = PeerMemfd::parse(copy, bytes as u64).unwrap();
    let mapping = peer.map().unwrap();
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(ours.as_fd(), mode, 0, bytes as u64).unwrap();
    mapping.fill(0..bytes, 3, Store::Ordinary);
    assert_eq!(mapping.sum(0..bytes, 1), 3 * bytes as u64);
    let sealed = Draft::create("host", bytes).unwrap().seal(bytes).unwrap();
    assert_eq!(sealed.map().unwrap().len(), bytes);
    // A file that is cut under a view is the kernel's to read.
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes as u64).unwrap();
    let view = FileView::map(file.as_fd(), 0, bytes).unwrap();
    file.set_len(0).unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    assert!(view.write_to(0..page_bytes(), writer.as_fd(), WriteWay::Plain).is_err());
}

#[test]
fn a_fault_of_the_hosts_own_reaches_its_own_handler() {
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler does only what a handler may.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) }, 0);
    use_memory();
    assert_eq!(FAULTS.load(Ordering::Relaxed), 0, "the library's own memory doesn't fault");
    let file = rustix::fs::memfd_create("host", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, page_bytes() as u64).unwrap();
    assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).is_err(), "it can be cut");
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let start = unsafe {
        let fd = file.as_raw_fd();
        libc::mmap(ptr::null_mut(), page_bytes(), protection, libc::MAP_SHARED, fd, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    rustix::fs::ftruncate(&file, 0).unwrap();
    // SAFETY: mapped; the handler puts a page there when the access faults.
    assert_eq!(unsafe { ptr::read_volatile(start.cast::<u8>()) }, 0);
    assert_eq!(FAULTS.load(Ordering::Relaxed), 1);
    use_memory();
    assert_eq!(FAULTS.load(Ordering::Relaxed), 1);
    // SAFETY: read only; the disposition is what was set above.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: writes one sigaction, which is there.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut found) }, 0);
    assert_eq!(found.sa_sigaction, action.sa_sigaction);
}
