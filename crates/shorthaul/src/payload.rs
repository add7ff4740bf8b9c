//! Memory for payloads and messages that belongs to one side alone.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shorthaul_platform::memory::{HugePages, PrivateMemory, huge_page_bytes, page_bytes};
use smallvec::{Array, SmallVec};

use crate::limits::{POOL_BLOCKS_MAX, POOL_BYTES_MAX};
use crate::meter::Meter;

/// Small bytes that usually fit without allocating: a request, a response. They are moved a dozen
/// times on their way, so there is no room to spare.
pub type MessageBytes = SmallVec<[u8; 80]>;

/// Puts parts together in one go: appending to a `SmallVec` part by part costs more than the bytes.
pub(crate) fn concat<A: Array<Item = u8>>(parts: &[&[u8]]) -> SmallVec<A> {
    let bytes = parts.iter().map(|part| part.len()).sum();
    let mut whole = SmallVec::from_elem(0, bytes);
    let mut rest = &mut whole[..];
    for part in parts {
        let (place, behind) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = behind;
    }
    whole
}

/// Keeps memory that inline payloads have used, so that the next ones take no page faults.
#[derive(Debug, Default)]
pub(crate) struct MemoryPool {
    spare: Mutex<Spare>,
    pages: HugePages,
}

#[derive(Debug)]
struct Spare {
    bytes: usize,
    /// By the logarithm of the block's size.
    classes: [Vec<PrivateMemory>; usize::BITS as usize],
}

impl Default for Spare {
    fn default() -> Self {
        Self { bytes: 0, classes: std::array::from_fn(|_| Vec::new()) }
    }
}

/// Memory for one payload, page-aligned; goes back to its pool when dropped.
#[derive(Debug)]
pub(crate) struct PooledMemory {
    memory: Option<PrivateMemory>,
    bytes: usize,
    pool: Arc<MemoryPool>,
    /// Who counts the bytes as long as they are in use.
    meter: Option<Arc<Meter>>,
}

/// A pool, and who counts what is taken out of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Purse {
    pool: Arc<MemoryPool>,
    meter: Option<Arc<Meter>>,
}

impl Purse {
    /// Memory of `bytes` bytes; an error of kind `QuotaExceeded` if that is more than may be taken.
    pub(crate) fn take(&self, bytes: usize) -> io::Result<PooledMemory> {
        if self.meter.as_ref().is_some_and(|meter| !meter.add(bytes as u64)) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        match self.pool.take(bytes) {
            Ok(mut memory) => {
                memory.meter = self.meter.clone();
                Ok(memory)
            }
            Err(error) => {
                self.meter.iter().for_each(|meter| meter.subtract(bytes as u64));
                Err(error)
            }
        }
    }
}

impl MemoryPool {
    /// An empty pool, of memory with these pages.
    pub(crate) fn new(pages: HugePages) -> Self {
        Self { pages, ..Self::default() }
    }

    /// Memory of `bytes` bytes with unspecified contents of this process's own earlier payloads.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> io::Result<PooledMemory> {
        let block_bytes = block_bytes(bytes)?;
        let memory = match self.pop(block_bytes) {
            Some(memory) => memory,
            None => self.make(block_bytes)?,
        };
        Ok(PooledMemory { memory: Some(memory), bytes, pool: Arc::clone(self), meter: None })
    }

    fn make(&self, block_bytes: usize) -> io::Result<PrivateMemory> {
        let memory = PrivateMemory::new(block_bytes)?;
        if self.pages == HugePages::Auto && block_bytes >= huge_page_bytes() {
            memory.prefer_huge_pages();
        }
        Ok(memory)
    }

    /// This pool for those whose payloads nobody counts.
    pub(crate) fn uncounted(self: &Arc<Self>) -> Purse {
        Purse { pool: Arc::clone(self), meter: None }
    }

    /// This pool for those whose payloads `meter` counts.
    pub(crate) fn counted(self: &Arc<Self>, meter: &Arc<Meter>) -> Purse {
        Purse { pool: Arc::clone(self), meter: Some(Arc::clone(meter)) }
    }

    fn pop(&self, block_bytes: usize) -> Option<PrivateMemory> {
        let mut spare = self.lock();
        let memory = spare.classes[class(block_bytes)].pop()?;
        spare.bytes -= block_bytes;
        Some(memory)
    }

    fn give_back(&self, memory: PrivateMemory) {
        let bytes = memory.len();
        let mut spare = self.lock();
        let is_welcome = bytes > 0
            && spare.bytes + bytes <= POOL_BYTES_MAX
            && spare.classes[class(bytes)].len() < POOL_BLOCKS_MAX;
        if is_welcome {
            spare.bytes += bytes;
            spare.classes[class(bytes)].push(memory);
        } else {
            // Unmapping may take long: not under the lock.
            drop(spare);
            drop(memory);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledMemory {
    /// The whole memory, for the kernels that store into it.
    /// Its bytes count no more, though it is given back a little later.
    pub(crate) fn uncount(&mut self) {
        self.meter.take().into_iter().for_each(|meter| meter.subtract(self.bytes as u64));
    }

    pub(crate) fn memory_mut(&mut self) -> &mut PrivateMemory {
        self.memory.as_mut().expect("there until dropped")
    }
}

impl Deref for PooledMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.as_ref().expect("there until dropped")[..self.bytes]
    }
}

impl AsRef<[u8]> for PooledMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl DerefMut for PooledMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        &mut self.memory_mut()[..bytes]
    }
}

impl Drop for PooledMemory {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give_back(memory);
        }
        self.uncount();
    }
}

/// Blocks are powers of two from a page on, so that few sizes serve all.
fn block_bytes(bytes: usize) -> io::Result<usize> {
    bytes
        .max(page_bytes())
        .checked_next_power_of_two()
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

fn class(block_bytes: usize) -> usize {
    block_bytes.trailing_zeros() as usize
}

#[cfg(test)]
#[cfg(not(shorthaul_models))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let pool = Arc::new(MemoryPool::default());
        let first = pool.take(5000).unwrap();
        let address = first.as_ptr();
        assert_eq!(first.len(), 5000);
        drop(first);
        assert_eq!(pool.take(8192).unwrap().as_ptr(), address);
    }

    #[test]
    fn keeps_no_more_than_its_bound() {
        let pool = Arc::new(MemoryPool::default());
        let many: Vec<_> = (0..POOL_BLOCKS_MAX + 5).map(|_| pool.take(1).unwrap()).collect();
        drop(many);
        assert_eq!(pool.lock().bytes, POOL_BLOCKS_MAX * page_bytes());
        drop(pool.take(POOL_BYTES_MAX + 1).unwrap());
        assert_eq!(pool.lock().bytes, POOL_BLOCKS_MAX * page_bytes());
    }

    #[test]
    fn what_is_taken_is_counted_until_it_is_dropped() {
        let meter = Arc::new(Meter::new(10_000));
        let purse = Arc::new(MemoryPool::default()).counted(&meter);
        let first = purse.take(6000).unwrap();
        assert_eq!(purse.take(4001).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        let second = purse.take(4000).unwrap();
        assert!(purse.take(usize::MAX).is_err());
        drop((first, second));
        assert!(meter.is_zero());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        let pool = Arc::new(MemoryPool::default());
        assert!(pool.take(usize::MAX).is_err());
        assert!(pool.take(isize::MAX as usize).is_err());
    }
}
