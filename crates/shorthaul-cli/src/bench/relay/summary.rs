//! From what was measured in each round to what is reported. Functions of numbers.

use super::crew::{Outcome, Relayed};
use super::meaning::{chosen, meaning};
use super::plan::{Crowd, Plan};
use super::report::{Cell, Client, Figures, Group};
use crate::bench::stats::{Spread, median};

/// What all rounds of one method gave.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    pub(super) rounds: Vec<Vec<Relayed>>,
    pub(super) why_not: Option<String>,
}

impl Samples {
    pub(super) fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Done(clients) => self.rounds.push(clients),
            Outcome::Unsupported(why) => self.why_not = Some(why),
        }
    }

    /// All clients together, in bytes per second, round by round.
    fn speeds(&self) -> Vec<f64> {
        self.rounds.iter().map(|clients| speed(clients)).collect()
    }
}

/// The methods of one group, in the order of the plan.
pub(super) fn group(
    plan: &Plan,
    crowd: Crowd,
    chunk_bytes: usize,
    copy_limits: &[f64],
    cells: &[Samples],
    alone: Option<&[Samples]>,
) -> Group {
    let nothing = Spread { median: 0.0, min: 0.0, max: 0.0 };
    let cells = plan.methods.iter().zip(cells).enumerate().map(|(index, (method, samples))| {
        let figures = figures(samples, copy_limits, alone.map(|alone| &alone[index]));
        let used = samples.rounds.iter().flatten().next().map(|relayed| &relayed.method[..]);
        let (sink, receive) = (plan.sink, plan.receive);
        Cell {
            method: method.name().to_owned(),
            meaning: match used {
                Some(used) if used != method.name() => chosen(used, sink, receive),
                _ => meaning(method.name(), sink, receive),
            },
            why_not: samples.why_not.clone(),
            figures,
        }
    });
    Group {
        clients: crowd.clients,
        files: crowd.files,
        chunk_bytes,
        copy_limit: Spread::of(copy_limits).unwrap_or(nothing),
        cells: cells.collect(),
    }
}

fn figures(samples: &Samples, copy_limits: &[f64], alone: Option<&Samples>) -> Option<Figures> {
    if samples.why_not.is_some() {
        return None;
    }
    let rounds = &samples.rounds;
    let speeds = samples.speeds();
    let each: Vec<f64> = rounds.iter().map(|clients| speed_each(clients)).collect();
    let costs: Vec<f64> = rounds.iter().filter_map(|clients| cpu_seconds_per_gb(clients)).collect();
    let bytes: u64 = rounds.iter().flatten().map(|client| client.bytes).sum();
    let calls: u64 = rounds.iter().flatten().map(|client| client.calls).sum();
    let clients = rounds.first().map_or(0, Vec::len);
    Some(Figures {
        bytes_per_second: Spread::of(&speeds)?,
        bytes_per_second_each: Spread::of(&each)?,
        of_copy_limit: Spread::of_ratios(&each, copy_limits)?,
        cpu_seconds_per_gb: Spread::of(&costs),
        efficiency: alone.and_then(|alone| efficiency(&speeds, clients, &alone.speeds())),
        bytes_per_call: bytes as f64 / calls.max(1) as f64,
        clients: middle_round(rounds),
    })
}

/// What `clients` clients did together, as a share of so many times what one did alone.
fn efficiency(speeds: &[f64], clients: usize, alone: &[f64]) -> Option<Spread> {
    let wanted: Vec<f64> = alone.iter().map(|speed| speed * clients as f64).collect();
    // Nothing was moved: nothing is said.
    if wanted.iter().any(|speed| *speed <= 0.0) {
        return None;
    }
    Spread::of_ratios(speeds, &wanted)
}

/// Bytes per second of all together, from the first start to the last end.
fn speed(clients: &[Relayed]) -> f64 {
    let start = clients.iter().map(|client| client.start_ns).min().unwrap_or(0);
    let end = clients.iter().map(|client| client.end_ns).max().unwrap_or(0);
    let bytes: u64 = clients.iter().map(|client| client.bytes).sum();
    per_second(bytes, end.saturating_sub(start))
}

fn speed_each(clients: &[Relayed]) -> f64 {
    let speeds = clients
        .iter()
        .map(|client| per_second(client.bytes, client.end_ns.saturating_sub(client.start_ns)));
    speeds.sum::<f64>() / clients.len().max(1) as f64
}

/// However short it was, a division has an answer.
fn per_second(bytes: u64, nanoseconds: u64) -> f64 {
    bytes as f64 * 1e9 / nanoseconds.max(1) as f64
}

fn cpu_seconds_per_gb(clients: &[Relayed]) -> Option<f64> {
    let bytes: u64 = clients.iter().map(|client| client.bytes).sum();
    let cpu: f64 = clients.iter().map(|client| client.cpu.as_secs_f64()).sum();
    (bytes > 0).then(|| cpu * 1e9 / bytes as f64)
}

/// The clients of the round whose speed is nearest to the median.
fn middle_round(rounds: &[Vec<Relayed>]) -> Vec<Client> {
    let middle = median(&rounds.iter().map(|clients| speed(clients)).collect::<Vec<_>>());
    let off = |clients: &[Relayed]| (speed(clients) - middle).abs();
    let round = rounds.iter().min_by(|a, b| off(a).total_cmp(&off(b)));
    let mut ended: Vec<(usize, &Relayed)> = round.into_iter().flatten().enumerate().collect();
    ended.sort_by_key(|(_, relayed)| relayed.end_ns);
    let client = |(client, relayed): (usize, &Relayed)| Client {
        client,
        bytes: relayed.bytes,
        loops: relayed.loops,
        nanoseconds: relayed.end_ns.saturating_sub(relayed.start_ns),
    };
    ended.into_iter().map(client).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn relayed(start_ns: u64, end_ns: u64, bytes: u64) -> Relayed {
        let cpu = Duration::from_nanos(end_ns - start_ns);
        Relayed { start_ns, end_ns, bytes, loops: 1, calls: 2, cpu, method: "rw".into() }
    }

    #[test]
    fn all_together_are_measured_from_the_first_start_to_the_last_end() {
        let clients = [relayed(0, 100, 1000), relayed(50, 200, 3000)];
        assert_eq!(speed(&clients), 4000.0 / 200e-9);
        assert_eq!(speed_each(&clients), f64::midpoint(1000.0 / 100e-9, 3000.0 / 150e-9));
        assert_eq!(cpu_seconds_per_gb(&clients), Some(250.0 / 4000.0));
    }

    #[test]
    fn nothing_in_no_time_is_nothing() {
        let clients = [relayed(5, 5, 0)];
        assert_eq!((speed(&clients), speed_each(&clients)), (0.0, 0.0));
        assert_eq!((speed(&[]), speed_each(&[])), (0.0, 0.0));
        assert_eq!(cpu_seconds_per_gb(&clients), None);
        assert!(speed(&[relayed(5, 5, 10)]).is_finite());
        assert_eq!(efficiency(&[0.0], 2, &[0.0]), None);
    }

    #[test]
    fn efficiency_is_of_so_many_times_one() {
        let found = efficiency(&[150.0, 400.0, 100.0], 2, &[100.0, 200.0, 100.0]).unwrap();
        assert_eq!((found.min, found.median, found.max), (0.5, 0.75, 1.0));
    }

    #[test]
    fn the_round_in_the_middle_is_shown_in_the_order_of_its_ends() {
        let rounds = [
            vec![relayed(0, 1000, 1), relayed(0, 1000, 1)],
            vec![relayed(0, 300, 1), relayed(0, 200, 2)],
            vec![relayed(0, 10, 1), relayed(0, 10, 1)],
        ];
        let shown: Vec<_> =
            middle_round(&rounds).iter().map(|c| (c.client, c.nanoseconds)).collect();
        assert_eq!(shown, [(1, 200), (0, 300)]);
        assert!(middle_round(&[]).is_empty());
    }

    #[test]
    fn what_cannot_be_done_has_no_figures() {
        let mut samples = Samples::default();
        samples.add(Outcome::Done(vec![relayed(0, 10, 5)]));
        assert_eq!(figures(&samples, &[1e9], None).unwrap().bytes_per_call, 2.5);
        samples.add(Outcome::Unsupported("not so".into()));
        assert!(figures(&samples, &[1e9], None).is_none());
    }
}
