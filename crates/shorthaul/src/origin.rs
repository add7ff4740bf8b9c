//! Which process made something: what fork(2) copies of it is not the child's to use.

use shorthaul_platform::memory::generation;

use crate::error::{Error, Result};

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    generation: u64,
    process: u32,
}

impl Origin {
    pub(crate) fn here() -> Self {
        Self { generation: generation(), process: std::process::id() }
    }

    /// Whether it was this process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.generation == generation()
    }

    /// Refuses to use a client's connection in a child: its parent's calls go over it too.
    #[inline]
    pub(crate) fn ensure_here(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(self.elsewhere()) }
    }

    #[cold]
    fn elsewhere(&self) -> Error {
        Error::Misuse(format!(
            "this client belongs to process {}, of which this one is a fork(2): connect anew here",
            self.process
        ))
    }
}
