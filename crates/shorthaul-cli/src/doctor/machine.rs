//! Kernel, clock and CPUs.

use rustix::system::uname;
use shorthaul_platform::store::Instructions;
use shorthaul_platform::topology::Topology;

use super::finding::{About, Finding, Group};
use super::system;

pub(super) fn findings() -> Vec<Finding> {
    vec![
        kernel(&uname().release().to_string_lossy()),
        clock_source(system::read(CLOCK_SOURCE)),
        cpu_stores(Instructions::detect()),
        cpus_allowed(),
    ]
}

pub(super) fn kernel(release: &str) -> Finding {
    let found = format!("Linux {release}");
    let Some(version) = system::version_in(release) else {
        return KERNEL.unknown(found);
    };
    match version {
        (..5, _) | (5, ..14) => KERNEL.degraded(
            found,
            "Before Linux 5.14 pages of shared memory can't be had ahead of their first use, and \
             nobody has tried Shorthaul there.",
            "boot a newer kernel",
        ),
        (..6, _) | (6, ..3) => KERNEL.degraded(
            found,
            "Before Linux 6.3 memory files can't be marked as never to be run as programs, and \
             before 6.1 they can't be put into huge pages on request.",
            "boot a newer kernel",
        ),
        _ => KERNEL.ok(found),
    }
}

fn clock_source(source: Result<String, String>) -> Finding {
    match source {
        Err(why) => CLOCK.unknown(why),
        Ok(name) => match name.as_str() {
            "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "pit" => CLOCK.degraded(
                format!("{name} (current_clocksource)"),
                "Each look at the time is a system call that asks a slow device; each call of \
                 Shorthaul looks a few times, for its deadline.",
                format!(
                    "find out why the kernel gave up the CPU's own clock: `dmesg | grep -i tsc`; \
                     on a machine whose clock is sound: `echo tsc > {CLOCK_SOURCE}`"
                ),
            ),
            _ => CLOCK.ok(format!("{name} (current_clocksource)")),
        },
    }
}

pub(super) fn cpu_stores(has: Instructions) -> Finding {
    let Instructions { strings, wide_sums, streaming } = has;
    let fill = if strings { "rep movsb/stosb (ERMS)" } else { "64-byte loops (no ERMS)" };
    let sums = if wide_sums { "AVX2 sums" } else { "16-byte sums (no AVX2)" };
    let past = if streaming { "streaming stores" } else { "no streaming stores" };
    let found = format!("{fill}, {sums}, {past}");
    if strings && wide_sums && streaming {
        return STORES.ok(found);
    }
    STORES.degraded(
        found,
        "Large payloads are stored, copied or summed by slower instructions; everything works.",
        "in a virtual machine let it have the host's CPU model (QEMU: `-cpu host`); on this CPU \
         itself there is nothing to be done",
    )
}

fn cpus_allowed() -> Finding {
    let topology = match Topology::read() {
        Ok(topology) => topology,
        Err(error) => return CPUS.unknown(system::words(&error)),
    };
    let allowed = topology.counts().cpus;
    match system::read(ONLINE) {
        Ok(_) => cpus(allowed, topology.disallowed().len()),
        Err(why) => CPUS.unknown(format!("{allowed} allowed; of how many: {why}")),
    }
}

pub(super) fn cpus(allowed: usize, disallowed: usize) -> Finding {
    let found = format!("{allowed} of {} online", allowed + disallowed);
    if disallowed == 0 && allowed > 1 {
        return CPUS.ok(found);
    }
    let cost = match allowed {
        1 => "Both sides of a call, and all threads of each, take turns on one CPU.",
        _ => "Threads can't be spread over all CPUs, nor be placed where they'd be fastest.",
    };
    let remedy = match disallowed {
        0 => "give the machine a second CPU, if it is a virtual one",
        _ => {
            "start it without `taskset`; in a container give it more CPUs (`--cpuset-cpus`); in a \
             control group widen cpuset.cpus; `shorthaul topology` shows what is left out"
        }
    };
    CPUS.degraded(found, cost, remedy)
}

const KERNEL: About = About {
    id: "kernel",
    group: Group::Machine,
    what: "kernel version",
    use_of_it: "Newer than everything that Shorthaul asks of a kernel.",
};
const CLOCK: About = About {
    id: "clock-source",
    group: Group::Machine,
    what: "clock that deadlines are read from",
    use_of_it: "The time is read for each call, without a system call where the clock allows it.",
};
const STORES: About = About {
    id: "cpu-stores",
    group: Group::Machine,
    what: "CPU instructions that move bytes",
    use_of_it: "What payloads are stored, copied and summed with.",
};
const CPUS: About = About {
    id: "cpus-allowed",
    group: Group::Machine,
    what: "CPUs that this process may use",
    use_of_it: "Client, server and their threads run side by side on different CPUs.",
};
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const ONLINE: &str = "/sys/devices/system/cpu/online";
