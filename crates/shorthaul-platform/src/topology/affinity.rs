//! Which CPUs the calling thread may run on, asked and set with masks of any size.
//!
//! `cpu_set_t` ends at 1024 CPUs; the kernel takes any length, and answers EINVAL to one that is
//! shorter than its own masks.

use std::io;

use super::cpu_set::{CPU_IDS_MAX, CpuSet, Word};

/// The CPUs on which the calling thread may run: online, within its cpuset and its own mask.
///
/// # Errors
/// What the kernel answers, or `InvalidInput` if its masks are longer than [`CPU_IDS_MAX`] bits.
///
/// # References
/// sched_getaffinity(2), "Handling systems with large CPU affinity masks".
pub fn current_affinity() -> io::Result<CpuSet> {
    grown(read_mask)
}

/// Lets the calling thread run on these CPUs only. The kernel leaves out, without an error, those
/// that are offline or outside the cpuset; [`current_affinity`] says what became of it.
///
/// # Errors
/// `InvalidInput` if none of the CPUs may be used; `PermissionDenied` from a sandbox.
///
/// # References
/// sched_setaffinity(2).
pub fn set_current_affinity(cpus: &CpuSet) -> io::Result<()> {
    let words = cpus.words();
    // SAFETY: the pointer and the length describe `words`, which the kernel only reads; an empty
    // slice has length 0, for which it reads nothing.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(words), words.as_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Pins the calling thread to one CPU (its OS id) and asks the kernel whether it is so.
///
/// # Errors
/// As [`set_current_affinity`]; `Other` if the thread's mask is not that one CPU afterwards.
pub fn pin_current_thread(cpu: u32) -> io::Result<()> {
    let wanted = CpuSet::from_ids([cpu])?;
    set_current_affinity(&wanted)?;
    let got = current_affinity()?;
    if got == wanted {
        return Ok(());
    }
    Err(io::Error::other(format!("asked for CPU {cpu}, but the thread may run on {got}")))
}

/// Asks with longer and longer masks until the kernel no longer finds them too short.
fn grown(mut read: impl FnMut(&mut [Word]) -> io::Result<()>) -> io::Result<CpuSet> {
    let mut bits = BITS_FIRST;
    loop {
        let mut words = vec![0; (bits / Word::BITS) as usize];
        match read(&mut words) {
            Ok(()) => return Ok(CpuSet::from_words(words)),
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
            Err(error) if bits >= CPU_IDS_MAX => return Err(error),
            Err(_) => bits *= 2,
        }
    }
}

fn read_mask(words: &mut [Word]) -> io::Result<()> {
    let size = size_of_val(words);
    // SAFETY: the pointer and the length describe `words`, exclusively borrowed; every bit pattern
    // that the kernel writes is a valid word.
    let result = unsafe { libc::sched_getaffinity(0, size, words.as_mut_ptr().cast()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What `cpu_set_t` holds: enough for nearly every machine, so that one call is.
const BITS_FIRST: u32 = 1024;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    /// A kernel built for so many CPUs, all of which the thread may use.
    fn kernel(bits_needed: u32) -> impl FnMut(&mut [Word]) -> io::Result<()> {
        move |words| {
            if words.len() * (Word::BITS as usize) < bits_needed as usize {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let all = CpuSet::from_ids(0..bits_needed)?;
            words[..all.words().len()].copy_from_slice(all.words());
            Ok(())
        }
    }

    #[test]
    fn the_mask_grows_with_the_machine() {
        for bits in [1, 513, 1024, 1025, 1920, 8192, CPU_IDS_MAX] {
            assert_eq!(grown(kernel(bits)).unwrap().len(), bits as usize);
        }
        assert_eq!(grown(kernel(CPU_IDS_MAX + 1)).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn other_errors_are_not_retried() {
        let mut calls = 0;
        let result = grown(|_| {
            calls += 1;
            Err(io::Error::from_raw_os_error(libc::EPERM))
        });
        assert_eq!((result.unwrap_err().raw_os_error(), calls), (Some(libc::EPERM), 1));
    }

    #[test]
    fn a_thread_is_pinned_to_each_of_its_cpus_and_let_go() {
        let before = current_affinity().unwrap();
        for cpu in before.iter() {
            pin_current_thread(cpu).unwrap();
            assert_eq!(current_affinity().unwrap().to_string(), cpu.to_string());
        }
        set_current_affinity(&before).unwrap();
        assert_eq!(current_affinity().unwrap(), before);
    }

    #[test]
    fn cpus_that_are_not_there_are_refused() {
        let before = current_affinity().unwrap();
        for cpu in [CPU_IDS_MAX - 1, CPU_IDS_MAX, u32::MAX] {
            assert_eq!(pin_current_thread(cpu).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let nothing = set_current_affinity(&CpuSet::new()).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(current_affinity().unwrap(), before);
    }
}
