//! Signals that would end a process where an error return will do.

/// Makes a write past RLIMIT_FSIZE an error (`EFBIG`) instead of the end of the process (SIGXFSZ).
/// For programs, early in `main`: a library leaves signals alone.
///
/// # References
/// setrlimit(2) `RLIMIT_FSIZE`, signal(2)
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler of ours, so there is none that could misbehave.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    debug_assert!(before != libc::SIG_ERR, "SIGXFSZ can be ignored");
}
