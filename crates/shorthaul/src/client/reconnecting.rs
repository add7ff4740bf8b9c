//! One client for many callers, made anew when its connection has ended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Client;
use super::connect::ClientOptions;
use crate::error::{Error, Result};

/// A [`Client`] that is shared and outlives its server: who asks for it after its connection has
/// ended gets a new one.
///
/// There is one attempt to connect for all who ask at the same time, and its outcome is everyone's.
/// No call is made again: of one that was under way when the connection ended only its caller knows
/// whether it may be done twice. Buffers belong to the client that made them; those of one that has
/// ended are of no use with the next, which refuses them.
#[derive(Debug)]
pub struct Reconnecting {
    path: PathBuf,
    options: ClientOptions,
    state: Mutex<State>,
    attempted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    client: Option<Arc<Client>>,
    is_connecting: bool,
    /// How many attempts have ended, and why the last one failed if it did.
    attempts: u64,
    failure: Option<Error>,
}

impl Reconnecting {
    /// A client of the server at `path`, which is connected when it is first asked for.
    pub fn new(path: impl AsRef<Path>, options: ClientOptions) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            options,
            state: Mutex::default(),
            attempted: Condvar::new(),
        }
    }

    /// The client. Connects if there is none whose connection lives, as far as is known; waits for
    /// whoever is connecting already, which ends as connecting does.
    ///
    /// # Errors
    /// As [`Client::connect`]. The next to ask tries again.
    pub fn client(&self) -> Result<Arc<Client>> {
        let mut state = self.lock();
        if let Some(client) = state.living() {
            return Ok(client);
        }
        if !state.is_connecting {
            state.is_connecting = true;
            state.failure = None;
            let ended = state.client.take();
            drop(state);
            drop(ended);
            return self.connect();
        }
        let before = state.attempts;
        while state.attempts == before {
            state = self.attempted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match (&state.client, &state.failure) {
            (Some(client), _) => Ok(Arc::clone(client)),
            (None, Some(failure)) => Err(told_again(failure)),
            (None, None) => Err(Error::ConnectionLost("who was connecting gave up".into())),
        }
    }

    fn connect(&self) -> Result<Arc<Client>> {
        let _attempt = Attempt(self);
        let connected = Client::connect_with(&self.path, &self.options).map(Arc::new);
        let mut state = self.lock();
        state.failure = connected.as_ref().err().map(told_again);
        state.client = connected.as_ref().ok().map(Arc::clone);
        drop(state);
        connected
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt to connect, which is over when this is dropped: a policy of the caller's may panic.
struct Attempt<'a>(&'a Reconnecting);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_connecting = false;
        state.attempts += 1;
        drop(state);
        self.0.attempted.notify_all();
    }
}

impl State {
    fn living(&self) -> Option<Arc<Client>> {
        self.client.as_ref().filter(|client| client.is_alive()).map(Arc::clone)
    }
}

/// The same failure, for another who asked.
fn told_again(failure: &Error) -> Error {
    match failure {
        Error::Io { context, cause } => {
            let cause = match cause.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => cause.kind().into(),
            };
            Error::io(context.clone(), cause)
        }
        Error::Misuse(message) => Error::Misuse(message.clone()),
        Error::PeerRefused(message) => Error::PeerRefused(message.clone()),
        Error::PeerMisbehaved(message) => Error::PeerMisbehaved(message.clone()),
        Error::ConnectionLost(message) => Error::ConnectionLost(message.clone()),
        other => Error::ConnectionLost(other.to_string()),
    }
}
