//! The floor of Shorthaul: what the kernel and the CPU give us, made safe.
//!
//! All unsafe code of the project lives in this crate, one operation per block, each with the
//! argument why it holds. What comes out is safe: owned descriptors, mappings that know who else
//! may write them, sockets that carry bytes together with descriptors, the CPU tree.
//!
//! ```
//! use shorthaul_platform::memory::{Memfd, PeerMemfd};
//! use shorthaul_platform::store::Store;
//!
//! // One process makes a region and maps it …
//! let memfd = Memfd::create("example", 8192)?;
//! let ours = memfd.map()?;
//! // … another receives the descriptor, parses it once, and fills it.
//! let theirs = PeerMemfd::parse(memfd.into_descriptor(), 8192).unwrap().map()?;
//! theirs.fill(0..8192, 7, Store::Ordinary);
//! assert_eq!(ours.sum(0..8192, 4096), 14);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What it does not do
//! No framing, no buffering, no policy, no threads; no `&[u8]` over memory that another process can
//! write. Linux only.

pub mod descriptors;
pub mod memory;
pub mod pipe;
pub mod signals;
pub mod socket;
pub mod store;
pub mod topology;
pub mod transfer;
pub mod uring;
pub mod usage;
