//! What processes have cost so far: this one in detail, another one in CPU time.

use std::io;
use std::mem::MaybeUninit;
use std::ops::{Add, AddAssign};
use std::time::Duration;

/// What something has cost, over all threads, those that have ended included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on CPUs, in user mode and in the kernel.
    pub cpu: Duration,
    /// Times that a thread left its CPU, by itself or made to.
    pub context_switches: u64,
    /// Page faults, with and without I/O.
    pub page_faults: u64,
}

impl Usage {
    /// What came after `earlier`; nothing where that was more.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            page_faults: self.page_faults.saturating_sub(earlier.page_faults),
        }
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            context_switches: self.context_switches + other.context_switches,
            page_faults: self.page_faults + other.page_faults,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What this process has cost since it began.
///
/// # Errors
/// Those of getrusage(2).
///
/// # References
/// getrusage(2) `RUSAGE_SELF`
pub fn process_usage() -> io::Result<Usage> {
    let found = rusage(libc::RUSAGE_SELF)?;
    Ok(Usage {
        cpu: duration(found.ru_utime) + duration(found.ru_stime),
        context_switches: count(found.ru_nvcsw) + count(found.ru_nivcsw),
        page_faults: count(found.ru_minflt) + count(found.ru_majflt),
    })
}

/// How often this thread was made to leave its CPU to another one, since it began.
///
/// # Errors
/// Those of getrusage(2).
///
/// # References
/// getrusage(2) `RUSAGE_THREAD`, `ru_nivcsw`
pub fn thread_preemptions() -> io::Result<u64> {
    Ok(count(rusage(libc::RUSAGE_THREAD)?.ru_nivcsw))
}

fn rusage(whose: libc::c_int) -> io::Result<libc::rusage> {
    let mut found = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage`, for which there is room.
    if unsafe { libc::getrusage(whose, found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a C struct of integers, for which all bytes are valid, zeroed and then filled.
    Ok(unsafe { found.assume_init() })
}

fn count(number: libc::c_long) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The time that all threads of a process have spent on CPUs, to the nanosecond.
///
/// # Errors
/// `ESRCH` when there is no such process, `EINVAL` for a number that can't be one.
///
/// # References
/// `clock_getcpuclockid(3)`
pub fn process_cpu_time(process: u32) -> io::Result<Duration> {
    // The number of a clock has no room for larger ones: they would name another process.
    let process = libc::pid_t::try_from(process)
        .ok()
        .filter(|&process| process < PROCESSES_MAX)
        .ok_or_else(|| io::Error::from(rustix::io::Errno::INVAL))?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: it writes one `clockid_t`, for which there is room; any number is fine as a process.
    let error = unsafe { libc::clock_getcpuclockid(process, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, for which there is room; a clock that has gone
    // meanwhile is an error return.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Ok(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0)))
}

fn duration(time: libc::timeval) -> Duration {
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_micros(part(time.tv_usec))
}

/// The kernel's own bound (`PID_MAX_LIMIT`); see proc(5), `pid_max`.
const PROCESSES_MAX: libc::pid_t = 1 << 22;

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use std::thread;

    use super::*;
    use crate::memory::PrivateMemory;

    fn usage(cpu_ms: u64, context_switches: u64, page_faults: u64) -> Usage {
        Usage { cpu: Duration::from_millis(cpu_ms), context_switches, page_faults }
    }

    #[test]
    fn usages_are_added_and_taken_from_each_other() {
        assert_eq!(usage(7, 5, 3).since(usage(2, 1, 3)), usage(5, 4, 0));
        assert_eq!(usage(1, 1, 1).since(usage(2, 2, 2)), Usage::default());
        let mut sum = usage(1, 2, 3) + usage(4, 5, 6);
        sum += usage(1, 1, 1);
        assert_eq!(sum, usage(6, 8, 10));
    }

    #[test]
    fn touched_pages_and_sleeps_are_counted() {
        let before = process_usage().unwrap();
        let memory = PrivateMemory::new(64 * crate::memory::page_bytes()).unwrap();
        memory.iter().step_by(crate::memory::page_bytes()).for_each(|byte| assert_eq!(*byte, 0));
        thread::sleep(Duration::from_millis(1));
        let cost = process_usage().unwrap().since(before);
        assert!(cost.page_faults >= 1 && cost.context_switches >= 1, "{cost:?}");
    }

    #[test]
    fn a_process_has_used_its_cpu_and_one_that_is_not_there_none() {
        assert!(process_cpu_time(std::process::id()).unwrap() > Duration::ZERO);
        assert!(process_cpu_time(u32::MAX).is_err());
        assert!(process_cpu_time((1 << 22) - 1).is_err());
    }
}
