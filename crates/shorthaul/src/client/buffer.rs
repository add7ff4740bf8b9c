//! The client's memory that servers fill, and read uploads from.

use std::fmt;
use std::ops::{Range, RangeBounds};
use std::os::fd::AsFd;
use std::sync::Arc;

use shorthaul_platform::memory::{SharedMapping, Trust};
use shorthaul_platform::store::Store;

use crate::relay::{Relay, RelayError, Relayed};

/// Memory that a server can fill and read: registered once, used for many calls, given back on
/// drop.
///
/// It is moved into a call and comes back out of the reply. In between it is the server's: after a
/// time-out or a cancelled call the library keeps it until the server has let go of it.
///
/// The server may write it at any moment while it has it, so no slice of it is given out (but by a
/// reply to a client that [trusts](crate::ClientOptions::trust) its server): its bytes are copied
/// and summed.
pub struct Buffer {
    memory: SharedMapping,
    region: Option<Registered>,
}

struct Registered {
    region: u64,
    home: Arc<dyn Home>,
}

/// The connection that a buffer is registered with, as far as the buffer needs it.
pub(crate) trait Home: fmt::Debug + Send + Sync {
    /// Takes note that no call will name the region again.
    fn release(&self, region: u64);
}

impl Buffer {
    pub(crate) fn registered(memory: SharedMapping, region: u64, home: Arc<dyn Home>) -> Self {
        Self { memory, region: Some(Registered { region, home }) }
    }

    pub(crate) fn one_shot(memory: SharedMapping) -> Self {
        Self { memory, region: None }
    }

    /// Its region's number, if it is registered with `home`.
    pub(crate) fn region_at(&self, home: &Arc<dyn Home>) -> Option<u64> {
        let registered = self.region.as_ref()?;
        Arc::ptr_eq(&registered.home, home).then_some(registered.region)
    }

    /// Its bytes in place.
    pub(crate) fn trusted(&self, range: Range<usize>, trust: Trust) -> &[u8] {
        self.memory.trusted(range, trust)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `at` on into `target`.
    ///
    /// # Panics
    /// If `at + target.len()` is past the end.
    pub fn copy_to(&self, at: usize, target: &mut [u8]) {
        self.memory.copy_out(at, target);
    }

    /// Copies `source` to `at`, to be sent with [`Call::payload_from`](crate::Call::payload_from).
    ///
    /// # Panics
    /// If `at + source.len()` is past the end.
    pub fn copy_from(&mut self, at: usize, source: &[u8]) {
        self.memory.copy_in(at, source, Store::Ordinary);
    }

    /// Relays the bytes of `range` from `source` to `at`: the kernel reads them straight into the
    /// buffer, and gives how many. Of a source that tells no size it takes no more than fits.
    ///
    /// # Errors
    /// As [`Relay::run`]; also [`Misuse`](crate::relay::Fault::Misuse) if the range is larger than
    /// the room behind `at`, and [`Unsupported`](crate::relay::Fault::Unsupported) for methods
    /// other than auto and rw.
    ///
    /// # Panics
    /// If `at` is past the end.
    pub fn relay_from(
        &mut self,
        at: usize,
        relay: &mut Relay,
        source: impl AsFd,
        range: impl RangeBounds<u64>,
    ) -> Result<Relayed, RelayError> {
        assert!(at <= self.len(), "byte {at} of a buffer of {}", self.len());
        relay.run_into_memory(source, range, &self.memory, at..self.len())
    }

    /// Writes `value` to every byte of `range`.
    ///
    /// # Panics
    /// If `range` is not inside the buffer.
    pub fn fill(&mut self, range: Range<usize>, value: u8) {
        self.memory.fill(range, value, Store::Ordinary);
    }

    /// Sums the first byte of every `stride` bytes of `range`; 1 reads them all.
    ///
    /// # Panics
    /// If `range` is not inside the buffer or `stride` is 0.
    pub fn sum(&self, range: Range<usize>, stride: usize) -> u64 {
        self.memory.sum(range, stride)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(Registered { region, home }) = self.region.take() {
            home.release(region);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let region = self.region.as_ref().map(|registered| registered.region);
        f.debug_struct("Buffer")
            .field("bytes", &self.len())
            .field("region", &region)
            .finish_non_exhaustive()
    }
}
