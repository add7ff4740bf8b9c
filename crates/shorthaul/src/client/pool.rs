//! Direct connections for many callers: each has one to itself while it needs it.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::connect::ClientOptions;
use super::direct::DirectClient;
use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex, MutexGuard, now};
use crate::threads::deadline_after;

/// Hands out direct connections to one server, at most so many at a time; those that died are
/// replaced. A buffer belongs to the connection that made it: keep them together.
#[derive(Debug)]
pub struct DirectPool {
    path: PathBuf,
    options: ClientOptions,
    places: Places<DirectClient>,
}

/// So many places, each lent to one holder at a time, with what the last holder has left there.
#[derive(Debug)]
struct Places<T> {
    max: usize,
    state: Mutex<State<T>>,
    returned: Condvar,
}

#[derive(Debug)]
struct State<T> {
    idle: Vec<T>,
    /// Things handed out, and those being made.
    lent: usize,
}

/// A direct connection on loan; goes back when dropped.
#[derive(Debug)]
pub struct Lent<'a> {
    client: Option<DirectClient>,
    pool: &'a DirectPool,
}

impl DirectPool {
    /// A pool of connections to `path`, made as they are needed, at most `connections_max`.
    pub fn new(path: impl AsRef<Path>, options: ClientOptions, connections_max: usize) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            options,
            places: Places::new(connections_max.max(1)),
        }
    }

    /// Takes a connection, waiting at most `timeout` while all are lent. The one that came back
    /// last goes out first: its memory is warm.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if none came back in time; what [`DirectClient::connect`] says.
    pub fn take(&self, timeout: Duration) -> Result<Lent<'_>> {
        // One that its server has closed meanwhile finds out here.
        let is_alive = |client: &mut DirectClient| client.poll(Duration::ZERO).is_ok();
        let Some(client) = self.places.take(deadline_after(timeout), is_alive) else {
            let max = self.places.max;
            return Err(Error::LimitReached(format!("all {max} connections are lent")));
        };
        // Gives its place back if connecting fails.
        let mut lent = Lent { client, pool: self };
        if lent.client.is_none() {
            lent.client = Some(DirectClient::connect_with(&self.path, &self.options)?);
        }
        Ok(lent)
    }
}

impl<T> Places<T> {
    fn new(max: usize) -> Self {
        let state = State { idle: Vec::new(), lent: 0 };
        Self { max, state: Mutex::new(state), returned: Condvar::new() }
    }

    /// Waits until `by` for a place, and takes what is there if it `is_fit`. None if all are lent.
    fn take(&self, by: Instant, mut is_fit: impl FnMut(&mut T) -> bool) -> Option<Option<T>> {
        let mut state = self.lock();
        loop {
            if let Some(mut thing) = state.idle.pop() {
                if is_fit(&mut thing) {
                    state.lent += 1;
                    return Some(Some(thing));
                }
                continue;
            }
            if state.lent < self.max {
                state.lent += 1;
                return Some(None);
            }
            let left = by.saturating_duration_since(now());
            if left.is_zero() {
                return None;
            }
            let waited = self.returned.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives a place back, with what is to be used again.
    fn give_back(&self, thing: Option<T>) {
        let mut state = self.lock();
        state.lent -= 1;
        state.idle.extend(thing);
        drop(state);
        self.returned.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Lent<'_> {
    type Target = DirectClient;

    fn deref(&self) -> &DirectClient {
        self.client.as_ref().expect("there until dropped")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut DirectClient {
        self.client.as_mut().expect("there until dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.pool.places.give_back(self.client.take().filter(DirectClient::is_alive));
    }
}

#[cfg(all(test, shorthaul_models))]
mod models;
