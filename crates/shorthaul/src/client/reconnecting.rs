//! One client for many callers, made anew when its connection has ended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
    latest: Mutex<Arc<Attempt>>,
}

/// What came of connecting once, or will: each who waits for it holds it, so that the next attempt
/// takes nothing from them. One that panicked is made again by who waited.
type Attempt = OnceLock<Result<Arc<Client>>>;

impl Reconnecting {
    /// A client of the server at `path`, which is connected when it is first asked for.
    pub fn new(path: impl AsRef<Path>, options: ClientOptions) -> Self {
        Self { path: path.as_ref().to_owned(), options, latest: Mutex::default() }
    }

    /// The client. Connects if there is none whose connection lives, as far as is known; waits for
    /// whoever is connecting already, which ends as connecting does.
    ///
    /// # Errors
    /// As [`Client::connect`]. The next to ask tries again.
    pub fn client(&self) -> Result<Arc<Client>> {
        let mut failure = None;
        let attempt = self.attempt();
        let outcome = attempt.get_or_init(|| {
            Client::connect_with(&self.path, &self.options).map(Arc::new).map_err(|error| {
                let again = told_again(&error);
                failure = Some(error);
                again
            })
        });
        match outcome {
            Ok(client) => Ok(Arc::clone(client)),
            Err(told) => Err(failure.unwrap_or_else(|| told_again(told))),
        }
    }

    /// The latest attempt; a new one if that has failed or its connection is no more.
    fn attempt(&self) -> Arc<Attempt> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = match latest.get() {
            Some(Ok(client)) => !client.is_alive(),
            Some(Err(_)) => true,
            None => false,
        };
        let ended = is_over.then(|| std::mem::take(&mut *latest));
        let attempt = Arc::clone(&latest);
        drop(latest);
        // Letting go of a client takes a while.
        drop(ended);
        attempt
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
