//! Direct connections for many callers: each has one to itself while it needs it.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connect::ClientOptions;
use super::direct::DirectClient;
use crate::error::{Error, Result};
use crate::threads::deadline_after;

/// Hands out direct connections to one server, at most so many at a time; those that died are
/// replaced. A buffer belongs to the connection that made it: keep them together.
#[derive(Debug)]
pub struct DirectPool {
    path: PathBuf,
    options: ClientOptions,
    connections_max: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<DirectClient>,
    /// Connections handed out, and those being made.
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
            connections_max: connections_max.max(1),
            state: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Takes a connection, waiting at most `timeout` while all are lent. The one that came back
    /// last goes out first: its memory is warm.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if none came back in time; what [`DirectClient::connect`] says.
    pub fn take(&self, timeout: Duration) -> Result<Lent<'_>> {
        let by = deadline_after(timeout);
        let mut state = self.lock();
        loop {
            if let Some(mut client) = state.idle.pop() {
                // One that its server has closed meanwhile finds out here.
                if client.poll(Duration::ZERO).is_ok() {
                    state.lent += 1;
                    return Ok(Lent { client: Some(client), pool: self });
                }
                continue;
            }
            if state.lent < self.connections_max {
                state.lent += 1;
                drop(state);
                return self.connect();
            }
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let max = self.connections_max;
                return Err(Error::LimitReached(format!("all {max} connections are lent")));
            }
            let waited = self.returned.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn connect(&self) -> Result<Lent<'_>> {
        // Gives its place back if connecting fails.
        let mut lent = Lent { client: None, pool: self };
        lent.client = Some(DirectClient::connect_with(&self.path, &self.options)?);
        Ok(lent)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
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
        let mut state = self.pool.lock();
        state.lent -= 1;
        state.idle.extend(self.client.take().filter(DirectClient::is_alive));
        drop(state);
        self.pool.returned.notify_one();
    }
}
