//! Which thread of a call runs on which CPU: the five placements that the bench compares.
//!
//! A call passes through four threads: the client's user thread, the client's reactor, the server's
//! reactor, and a worker. A placement says which of these hand-overs cross a core or a package.
//! Pure: a topology goes in, CPUs come out; whoever owns the threads pins them.
//!
//! ```
//! use shorthaul::placement::Placement;
//! use shorthaul_platform::topology::{CpuDescription, Topology};
//!
//! let cpu = |id| CpuDescription { id, package: Some(0), core: Some(id), ..Default::default() };
//! let laptop = Topology::from_cpus(vec![cpu(0), cpu(1)]);
//! let placed = Placement::ClientServerCrossCore.assign(&laptop).expect("there are two cores");
//! assert_eq!(placed.to_string(), "S0C0T0 S0C0T0 S0C1T0 S0C1T0");
//! assert!(Placement::EveryHopCrossesCore.assign(&laptop).is_none());
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use shorthaul_platform::topology::{Cpu, Topology};

/// Which hand-overs of a call cross a core or a package.
///
/// A package is what the seat of a processor holds (the S of `S0C0T0`); a machine that names no
/// packages is one, and a CPU of which no core is named counts as a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// All four threads share one CPU.
    AllSameCore,
    /// The client's threads share one CPU, the server's another, on the next core of the package;
    /// if there is a choice, of the same NUMA node and die.
    ClientServerCrossCore,
    /// The same, but the server is in another package.
    ClientServerCrossSocket,
    /// Four cores, one for each thread; if there is a choice, as near as in
    /// [`Placement::ClientServerCrossCore`], and otherwise anywhere in the machine.
    EveryHopCrossesCore,
    /// Four cores, two in each of two packages; each thread is in the other package than the one
    /// before it.
    EveryHopCrossesSocket,
}

impl Placement {
    /// All placements, from near to far.
    pub const ALL: [Self; 5] = [
        Self::AllSameCore,
        Self::ClientServerCrossCore,
        Self::ClientServerCrossSocket,
        Self::EveryHopCrossesCore,
        Self::EveryHopCrossesSocket,
    ];

    /// The name by which it is asked for and reported.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllSameCore => "all-same-core",
            Self::ClientServerCrossCore => "client-server-cross-core",
            Self::ClientServerCrossSocket => "client-server-cross-socket",
            Self::EveryHopCrossesCore => "every-hop-crosses-core",
            Self::EveryHopCrossesSocket => "every-hop-crosses-socket",
        }
    }

    /// The CPU of each thread, or `None` if this machine cannot do it;
    /// [`why_not`](Placement::why_not) says what it would need.
    #[must_use]
    pub fn assign(self, topology: &Topology) -> Option<Assignment> {
        let cores = Cores::of(topology);
        let [client, client_reactor, server_reactor, worker] = match self {
            Self::AllSameCore => cores.all_same_core(),
            Self::ClientServerCrossCore => cores.client_server_cross_core(),
            Self::ClientServerCrossSocket => cores.client_server_cross_socket(),
            Self::EveryHopCrossesCore => cores.every_hop_crosses_core(),
            Self::EveryHopCrossesSocket => cores.every_hop_crosses_socket(),
        }?
        .map(Cpu::clone);
        Some(Assignment { client, client_reactor, server_reactor, worker })
    }

    /// What the placement needs, and what this machine has: `needs two packages; this machine
    /// has 1`. Said of CPUs that may be used; that there are others is said too.
    #[must_use]
    pub fn why_not(self, topology: &Topology) -> String {
        let cores = Cores::of(topology);
        let (needed, found) = match self {
            Self::AllSameCore => ("a CPU", cores.0.len()),
            Self::ClientServerCrossCore => ("two cores in one package", cores.most_in_a_package()),
            Self::ClientServerCrossSocket => ("two packages", cores.packages(1).len()),
            Self::EveryHopCrossesCore => ("four cores", cores.0.len()),
            Self::EveryHopCrossesSocket => {
                ("two packages of two cores or more", cores.packages(2).len())
            }
        };
        let found = match found {
            0 => "has none".to_owned(),
            _ if self.crosses_sockets() && topology.counts().packages.is_none() => {
                "names no packages".to_owned()
            }
            _ => format!("has {found}"),
        };
        format!("needs {needed}; this machine {found}{}", reservation(topology))
    }

    const fn crosses_sockets(self) -> bool {
        matches!(self, Self::ClientServerCrossSocket | Self::EveryHopCrossesSocket)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, UnknownPlacement> {
        let known = Self::ALL.into_iter().find(|placement| placement.name() == name);
        known.ok_or_else(|| UnknownPlacement(name.to_owned()))
    }
}

/// A name that no placement has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no placement is called {0:?}; there are {names}", names = names())]
pub struct UnknownPlacement(String);

/// The CPU of each of the four threads of a call, in the order in which a call passes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The client's user thread.
    pub client: Cpu,
    /// The client's reactor thread.
    pub client_reactor: Cpu,
    /// The server's reactor thread.
    pub server_reactor: Cpu,
    /// The server's worker thread.
    pub worker: Cpu,
}

impl Assignment {
    /// The four CPUs in the order of the fields.
    #[must_use]
    pub const fn cpus(&self) -> [&Cpu; 4] {
        [&self.client, &self.client_reactor, &self.server_reactor, &self.worker]
    }
}

/// The four places: `S0C0T0 S0C0T0 S0C1T0 S0C1T0`.
impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [client, client_reactor, server_reactor, worker] = self.cpus().map(Cpu::place);
        write!(f, "{client} {client_reactor} {server_reactor} {worker}")
    }
}

/// The first CPU of each core, by package and core. Where packages are named, a CPU of an unknown
/// one (these come last) is left out, since it could be in any.
struct Cores<'a>(Vec<&'a Cpu>);

impl<'a> Cores<'a> {
    fn of(topology: &'a Topology) -> Self {
        let packages = topology.counts().packages.unwrap_or(1);
        let eligible = |cpu: &&Cpu| cpu.thread_index == 0 && cpu.socket_index < packages;
        let mut cores: Vec<_> = topology.cpus().iter().filter(eligible).collect();
        cores.sort_by_key(|cpu| cpu.place());
        Self(cores)
    }

    fn all_same_core(&self) -> Option<[&'a Cpu; 4]> {
        Some([*self.0.first()?; 4])
    }

    fn client_server_cross_core(&self) -> Option<[&'a Cpu; 4]> {
        let [client, server] = self.neighbours()?;
        Some([client, client, server, server])
    }

    fn client_server_cross_socket(&self) -> Option<[&'a Cpu; 4]> {
        let packages = self.packages(1);
        let (client, server) = (packages.first()?[0], packages.get(1)?[0]);
        Some([client, client, server, server])
    }

    fn every_hop_crosses_core(&self) -> Option<[&'a Cpu; 4]> {
        self.neighbours().or_else(|| self.0.first_chunk().copied())
    }

    fn every_hop_crosses_socket(&self) -> Option<[&'a Cpu; 4]> {
        let packages = self.packages(2);
        let (near, far) = (packages.first()?, packages.get(1)?);
        Some([near[0], far[0], near[1], far[1]])
    }

    /// The first N cores that share package, node and die; or package and node; or package.
    fn neighbours<const N: usize>(&self) -> Option<[&'a Cpu; N]> {
        let closest = self.sharing(|cpu| (cpu.socket_index, cpu.node, cpu.die));
        let closer = || self.sharing(|cpu| (cpu.socket_index, cpu.node));
        closest.or_else(closer).or_else(|| self.sharing(|cpu| cpu.socket_index))
    }

    /// The first N cores for which the key is the same, of the first key that has as many.
    fn sharing<K: Ord, const N: usize>(&self, key: impl Fn(&Cpu) -> K) -> Option<[&'a Cpu; N]> {
        let mut groups: BTreeMap<K, Vec<&Cpu>> = BTreeMap::new();
        for &core in &self.0 {
            groups.entry(key(core)).or_default().push(core);
        }
        let groups = groups.into_values().filter_map(|group| group.first_chunk().copied());
        groups.min_by_key(|group: &[&Cpu; N]| group[0].place())
    }

    /// The packages that have so many cores.
    fn packages(&self, cores_min: usize) -> Vec<&[&'a Cpu]> {
        let packages = self.0.chunk_by(|a, b| a.socket_index == b.socket_index);
        packages.filter(|cores| cores.len() >= cores_min).collect()
    }

    fn most_in_a_package(&self) -> usize {
        self.packages(0).iter().map(|cores| cores.len()).max().unwrap_or(0)
    }
}

fn names() -> String {
    Placement::ALL.map(Placement::name).join(", ")
}

fn reservation(topology: &Topology) -> &'static str {
    match (topology.offline().is_empty(), topology.disallowed().is_empty()) {
        (true, true) => "",
        (false, true) => " (not counting the CPUs that are offline)",
        (true, false) => " (not counting the CPUs that this process may not use)",
        (false, false) => {
            " (not counting the CPUs that are offline or that this process may not use)"
        }
    }
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use shorthaul_platform::topology::CpuDescription;

    use super::*;

    /// CPUs numbered through: packages of cores of threads.
    fn machine(packages: u32, cores: u32, threads: u32) -> Topology {
        let described = |id| CpuDescription {
            id,
            package: Some(id / threads / cores),
            core: Some(id / threads % cores),
            ..CpuDescription::default()
        };
        Topology::from_cpus((0..packages * cores * threads).map(described).collect())
    }

    fn assigned(topology: &Topology) -> [Option<String>; 5] {
        Placement::ALL.map(|placement| placement.assign(topology).map(|found| found.to_string()))
    }

    fn places<const N: usize>(places: [&str; N]) -> [Option<String>; N] {
        places.map(|place| (!place.is_empty()).then(|| place.to_owned()))
    }

    #[test]
    fn two_packages_can_do_everything() {
        let expected = places([
            "S0C0T0 S0C0T0 S0C0T0 S0C0T0",
            "S0C0T0 S0C0T0 S0C1T0 S0C1T0",
            "S0C0T0 S0C0T0 S1C0T0 S1C0T0",
            "S0C0T0 S0C1T0 S0C2T0 S0C3T0",
            "S0C0T0 S1C0T0 S0C1T0 S1C1T0",
        ]);
        assert_eq!(assigned(&machine(2, 4, 2)), expected);
    }

    #[test]
    fn the_machine_of_the_first_measurements_cannot_cross_sockets() {
        let expected = places([
            "S0C0T0 S0C0T0 S0C0T0 S0C0T0",
            "S0C0T0 S0C0T0 S0C1T0 S0C1T0",
            "",
            "S0C0T0 S0C1T0 S0C2T0 S0C3T0",
            "",
        ]);
        assert_eq!(assigned(&machine(1, 4, 2)), expected);
    }

    #[test]
    fn four_cores_may_be_in_several_packages() {
        let topology = machine(2, 2, 1);
        let found = Placement::EveryHopCrossesCore.assign(&topology).unwrap();
        assert_eq!(found.to_string(), "S0C0T0 S0C1T0 S1C0T0 S1C1T0");
    }

    #[test]
    fn packages_of_one_core_are_not_shared_by_two_threads() {
        let topology = machine(2, 1, 4);
        let expected =
            places(["S0C0T0 S0C0T0 S0C0T0 S0C0T0", "", "S0C0T0 S0C0T0 S1C0T0 S1C0T0", "", ""]);
        assert_eq!(assigned(&topology), expected);
    }

    #[test]
    fn neighbours_share_node_and_die_if_they_can() {
        let described = |id, node, die| CpuDescription {
            id,
            package: Some(0),
            die: Some(die),
            core: Some(id),
            node: Some(node),
            ..CpuDescription::default()
        };
        let cpus = [(9, 0, 0), (12, 0, 1), (20, 0, 1), (3, 1, 0)];
        let topology = |count| {
            let cpus = cpus[..count].iter().map(|&(id, node, die)| described(id, node, die));
            Topology::from_cpus(cpus.collect())
        };
        let ids = |count| {
            let found = Placement::ClientServerCrossCore.assign(&topology(count)).unwrap();
            (found.client.id, found.worker.id)
        };
        assert_eq!(ids(4), (12, 20));
        assert_eq!(ids(2), (9, 12));
    }

    #[test]
    fn a_machine_that_names_nothing_is_one_package_of_cores() {
        let unnamed = |id| CpuDescription { id, ..CpuDescription::default() };
        let topology = Topology::from_cpus((0..4).map(unnamed).collect());
        let found = Placement::EveryHopCrossesCore.assign(&topology).unwrap();
        assert_eq!(found.to_string(), "S0C0T0 S0C1T0 S0C2T0 S0C3T0");
        assert_eq!(Placement::ClientServerCrossSocket.assign(&topology), None);
    }

    #[test]
    fn a_cpu_of_an_unknown_package_is_in_no_other() {
        let known = |id| CpuDescription { id, package: Some(0), ..CpuDescription::default() };
        let unknown = CpuDescription::default();
        let topology = Topology::from_cpus(vec![unknown, known(1), known(2)]);
        let found = Placement::ClientServerCrossCore.assign(&topology).unwrap();
        assert_eq!((found.client.id, found.worker.id), (1, 2));
        assert_eq!(Placement::ClientServerCrossSocket.assign(&topology), None);
    }

    #[test]
    fn what_is_missing_is_said() {
        let why_not = |topology: &Topology| Placement::ALL.map(|found| found.why_not(topology));
        let laptop = why_not(&machine(1, 1, 2));
        assert_eq!(laptop[1], "needs two cores in one package; this machine has 1");
        assert_eq!(laptop[2], "needs two packages; this machine has 1");
        assert_eq!(laptop[3], "needs four cores; this machine has 1");
        assert_eq!(laptop[4], "needs two packages of two cores or more; this machine has none");
        assert_eq!(why_not(&machine(0, 0, 1))[0], "needs a CPU; this machine has none");
        let unnamed = CpuDescription { id: 0, ..CpuDescription::default() };
        let unnamed = why_not(&Topology::from_cpus(vec![unnamed]));
        assert_eq!(unnamed[2], "needs two packages; this machine names no packages");
    }

    #[test]
    fn no_cpu_is_no_placement() {
        assert_eq!(assigned(&Topology::from_cpus(Vec::new())), [const { None }; 5]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for placement in Placement::ALL {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
        let error = "same-core".parse::<Placement>().unwrap_err();
        assert!(
            error.to_string().starts_with("no placement is called \"same-core\"; there are all-")
        );
    }
}
