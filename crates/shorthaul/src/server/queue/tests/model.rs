//! Any order of events, against what the queue should be doing.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Act {
    Push { line: usize, bytes: u64, inline: u64 },
    Pop,
    Answer { which: usize, part: u64 },
    Write { which: usize },
    Remove { which: usize },
    Forget { line: usize },
}

fn act() -> impl Strategy<Value = Act> {
    let inline = prop_oneof![2 => Just(0), 2 => 0..LARGE, 1 => LARGE..2 * LARGE];
    prop_oneof![
        6 => (0..4_usize, 0..2 * LARGE, inline)
            .prop_map(|(line, bytes, inline)| Act::Push { line, bytes, inline }),
        4 => Just(Act::Pop),
        3 => (any::<usize>(), 0..=4_u64).prop_map(|(which, part)| Act::Answer { which, part }),
        3 => any::<usize>().prop_map(|which| Act::Write { which }),
        2 => any::<usize>().prop_map(|which| Act::Remove { which }),
        1 => (0..4_usize).prop_map(|line| Act::Forget { line }),
    ]
}

/// What the queue should be doing, without any order between connections.
struct Model {
    queue: Queue,
    /// The connections at present; a forgotten one's number is not used again.
    connections: [u64; 4],
    waiting: HashMap<u64, VecDeque<Job>>,
    running: Vec<Popped<Job>>,
    /// Answered, with inline bytes to be written.
    unwritten: Vec<(u64, u64)>,
    inline: HashMap<u64, u64>,
    pushed: u64,
    ended: u64,
}

impl Model {
    fn new() -> Self {
        Self {
            queue: Queue::new(),
            connections: [0, 1, 2, 3],
            waiting: HashMap::new(),
            running: Vec::new(),
            unwritten: Vec::new(),
            inline: HashMap::new(),
            pushed: 0,
            ended: 0,
        }
    }

    fn may_run(&self) -> bool {
        self.waiting.iter().any(|(connection, line)| {
            let used = self.inline.get(connection).copied().unwrap_or(0);
            let has_room = |job: &Job| used == 0 || used + job.inline <= INLINE_BYTES_UNDER_WAY_MAX;
            line.front().is_some_and(has_room)
        })
    }

    fn obey(&mut self, act: Act) {
        match act {
            Act::Push { line, bytes, inline } => self.push(self.connections[line], bytes, inline),
            Act::Pop => self.pop(),
            Act::Answer { which, part } if !self.running.is_empty() => {
                let popped = self.running.swap_remove(which % self.running.len());
                self.answer(popped, part);
            }
            Act::Write { which } if !self.unwritten.is_empty() => {
                let (connection, bytes) = self.unwritten.swap_remove(which % self.unwritten.len());
                self.queue.written(connection, bytes);
                self.use_less(connection, bytes);
            }
            Act::Remove { which } => {
                let line = self.connections[which % 4];
                let job = self.waiting.get(&line).and_then(|l| l.get(which % 5)).cloned();
                if let Some(job) = job {
                    assert_eq!(self.queue.remove(line, job.id), Some(job.clone()));
                    self.waiting.get_mut(&line).unwrap().retain(|j| j.id != job.id);
                    self.ended += 1;
                }
            }
            Act::Forget { line } => {
                let connection = self.connections[line];
                let forgotten = self.queue.forget(connection);
                self.ended += forgotten.len() as u64;
                assert_eq!(forgotten, self.waiting.remove(&connection).unwrap_or_default());
                self.inline.remove(&connection);
                self.connections[line] += 4;
            }
            Act::Answer { .. } | Act::Write { .. } => {}
        }
    }

    fn push(&mut self, connection: u64, bytes: u64, inline: u64) {
        self.pushed += 1;
        self.queue.add(connection, self.pushed, bytes, inline);
        self.waiting.entry(connection).or_default().push_back(Job {
            connection,
            id: self.pushed,
            bytes,
            inline,
        });
    }

    fn pop(&mut self) {
        let may_run = self.may_run();
        let popped = self.queue.pop_now();
        assert_eq!(popped.is_some(), may_run);
        let Some(popped) = popped else { return };
        let connection = popped.call.connection;
        let line = self.waiting.get_mut(&connection).unwrap();
        assert_eq!(line.pop_front().as_ref(), Some(&popped.call));
        *self.inline.entry(connection).or_default() += popped.call.inline;
        self.ended += 1;
        self.running.push(popped);
    }

    fn answer(&mut self, popped: Popped<Job>, part: u64) {
        let Popped { call, charged_bytes } = popped;
        let (moved, sent) = (call.bytes / 4 * part, call.inline / 4 * part);
        let connection = call.connection;
        self.queue.answered(connection, charged_bytes, moved, call.inline, sent);
        self.use_less(connection, call.inline - sent);
        if sent > 0 && self.connections.contains(&connection) {
            self.unwritten.push((connection, sent));
        }
    }

    fn use_less(&mut self, connection: u64, bytes: u64) {
        if let Some(used) = self.inline.get_mut(&connection) {
            *used -= bytes;
        }
    }

    /// Everything under way ends, and everything that waits is served.
    fn finish(mut self) {
        // Each round ends what runs, so that something more may run.
        while !self.running.is_empty() || !self.unwritten.is_empty() || self.may_run() {
            self.obey(Act::Pop);
            self.obey(Act::Answer { which: 0, part: 4 });
            self.obey(Act::Write { which: 0 });
        }
        assert_eq!(self.ended, self.pushed);
        assert!(self.queue.pop_now().is_none());
    }
}

proptest! {
    #[test]
    fn every_call_ends_once_and_nobody_waits_for_nothing(
        acts in prop::collection::vec(act(), 0..200)
    ) {
        let mut model = Model::new();
        acts.into_iter().for_each(|act| model.obey(act));
        model.finish();
    }
}
