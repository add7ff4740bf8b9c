//! The topology for people: packages, their nodes and dies, runs of cores, and the placements.

use std::collections::HashSet;
use std::io::{self, Write};

use shorthaul::placement::Placement;
use shorthaul_platform::topology::{Cpu, CpuSet, Topology};

use super::tree::{self, Package, Part};

/// Writes a summary that stays short however many CPUs there are.
pub(super) fn write(output: &mut dyn Write, topology: &Topology) -> io::Result<()> {
    writeln!(output, "{}", summary(topology))?;
    left_out(output, "offline", topology.offline())?;
    left_out(output, "not allowed for this process", topology.disallowed())?;
    if named_nodes(topology) > topology.counts().numa_nodes {
        writeln!(output, "NUMA nodes whose memory this process may not use are not counted")?;
    }
    writeln!(output)?;
    packages(output, topology)?;
    writeln!(output)?;
    placements(output, topology)
}

fn summary(topology: &Topology) -> String {
    let counts = topology.counts();
    let unnamed = || "no cores named (each CPU counts as one)".to_owned();
    let kinds = [
        counted(counts.cpus, "CPU"),
        counts.cores.map_or_else(unnamed, |count| counted(count, "core")),
        counts.packages.map_or("no packages named".into(), |count| counted(count, "package")),
        counted(counts.numa_nodes, "NUMA node"),
    ];
    kinds.join(", ")
}

fn left_out(output: &mut dyn Write, why: &str, cpus: &CpuSet) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    writeln!(output, "{why}: {}", cpu_list(cpus))
}

fn named_nodes(topology: &Topology) -> usize {
    topology.cpus().iter().filter_map(|cpu| cpu.node).collect::<HashSet<_>>().len()
}

/// One entry per package, or per run of packages that are alike where there are many.
fn packages(output: &mut dyn Write, topology: &Topology) -> io::Result<()> {
    let packages = tree::packages(topology.cpus());
    let run_max = if packages.len() > PACKAGES_IN_FULL { usize::MAX } else { 1 };
    let alike = packages.chunk_by(Package::is_like);
    for run in alike.flat_map(|run| run.chunks(run_max)) {
        match run {
            [package] => in_full(output, package, topology)?,
            _ => in_one_line(output, run)?,
        }
    }
    Ok(())
}

fn in_full(output: &mut dyn Write, package: &Package, topology: &Topology) -> io::Result<()> {
    let socket = package.socket_index;
    match package.label {
        Some(label) => writeln!(output, "S{socket}: package {label}")?,
        None if topology.counts().packages.is_none() => {
            writeln!(output, "S{socket}: all CPUs, since no packages are named")?;
        }
        None => writeln!(output, "S{socket}: package without a label")?,
    }
    for part in &package.parts {
        writeln!(output, "  {}{}: {}", surroundings(part), cores(part)?, threads(part)?)?;
    }
    Ok(())
}

fn in_one_line(output: &mut dyn Write, run: &[Package]) -> io::Result<()> {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    write!(output, "S{}-S{}: {} packages alike", first.socket_index, last.socket_index, run.len())?;
    for part in &first.parts {
        let cores = counted(part.cores.len(), "core");
        let threads = counted(part.threads_per_core(), "thread");
        write!(output, ", {}{cores} of {threads} each", surroundings(part))?;
    }
    let cpus = run.iter().flat_map(|package| &package.parts).flat_map(Part::cpus);
    writeln!(output, ": CPUs {}", cpu_list(&CpuSet::from_ids(cpus.map(|cpu| cpu.id))?))
}

/// "node 0, die 1, ", as far as they are named.
fn surroundings(part: &Part) -> String {
    let named = |kind, label: Option<u32>| label.map_or(String::new(), |n| format!("{kind} {n}, "));
    named("node", part.node) + &named("die", part.die)
}

/// "C0-C5, 2 threads each".
fn cores(part: &Part) -> io::Result<String> {
    let indexes = part.cores.iter().map(|core| u32::try_from(core[0].core_index));
    let indexes = indexes.collect::<Result<Vec<_>, _>>().map_err(io::Error::other)?;
    let list = CpuSet::from_ids(indexes)?.to_string();
    let list = list.split(',').map(|range| format!("C{}", range.replace('-', "-C")));
    let list = shortened(&list.collect::<Vec<_>>().join(","));
    Ok(match part.threads_per_core() {
        1 => list,
        threads => format!("{list}, {threads} threads each"),
    })
}

/// One list where the threads of a core have neighbouring numbers, otherwise one per thread.
fn threads(part: &Part) -> io::Result<String> {
    if part.has_neighbouring_threads() {
        let cpus = CpuSet::from_ids(part.cpus().map(|cpu| cpu.id))?;
        return Ok(format!("CPU{} {}", if cpus.len() == 1 { "" } else { "s" }, cpu_list(&cpus)));
    }
    let lists = (0..part.threads_per_core()).map(|thread| {
        let ids = part.cores.iter().map(|core| core[thread].id);
        Ok(format!("{} (T{thread})", cpu_list(&CpuSet::from_ids(ids)?)))
    });
    let lists = lists.collect::<io::Result<Vec<_>>>()?;
    Ok(format!("CPUs {}", lists.join(", ")))
}

fn placements(output: &mut dyn Write, topology: &Topology) -> io::Result<()> {
    let rows = Placement::ALL.map(|placement| (placement, placement.assign(topology)));
    let places = |cpus: [&Cpu; 4]| cpus.map(|cpu| cpu.place().to_string());
    let rows = rows.map(|(placement, found)| (placement, found.map(|found| places(found.cpus()))));
    let widths = rows.iter().flat_map(|(_, row)| row.iter().flatten().map(String::len));
    let width = widths.max().unwrap_or(0).max(HEADINGS[0].len());
    writeln!(output, "{:NAME_WIDTH$}  {}", "placement", row(HEADINGS, width))?;
    for (placement, found) in &rows {
        let found = match found {
            Some(places) => row(places.each_ref().map(String::as_str), width),
            None => placement.why_not(topology),
        };
        writeln!(output, "{placement:NAME_WIDTH$}  {found}")?;
    }
    Ok(())
}

fn row([client, c_rx, s_rx, worker]: [&str; 4], width: usize) -> String {
    format!("{client:width$}  {c_rx:width$}  {s_rx:width$}  {worker}")
}

fn counted(count: usize, kind: &str) -> String {
    format!("{count} {kind}{}", if count == 1 { "" } else { "s" })
}

fn cpu_list(cpus: &CpuSet) -> String {
    let list = cpus.to_string();
    let short = shortened(&list);
    if short == list { list } else { format!("{short} ({})", counted(cpus.len(), "CPU")) }
}

/// Cut after a comma if it is long; the JSON has it all.
fn shortened(list: &str) -> String {
    let cut = list.char_indices().rfind(|&(at, c)| c == ',' && at < LIST_WIDTH_MAX);
    match cut {
        Some((at, _)) if list.len() > LIST_WIDTH_MAX => format!("{},...", &list[..at]),
        _ => list.to_owned(),
    }
}

/// More than these are written in runs. Virtual machines often have a package for each CPU.
const PACKAGES_IN_FULL: usize = 8;
const LIST_WIDTH_MAX: usize = 40;
const HEADINGS: [&str; 4] = ["client", "c-rx", "s-rx", "worker"];
const NAME_WIDTH: usize = "client-server-cross-socket".len();
