//! Stand-ins for what must be dropped exactly once, and the ledger that counts them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// What exists at present, by kind and name.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    living: Rc<RefCell<HashMap<(Kind, u64), usize>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Descriptor,
    Call,
    Region,
    /// A descriptor of the side that is tried, on its way to a hostile peer.
    Outgoing,
}

/// Something counted: a descriptor, a caller's token, or a region. Its name says which.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) name: u64,
    pub(super) kind: Kind,
    ledger: Ledger,
}

impl Ledger {
    pub(super) fn issue(&self, kind: Kind, name: u64) -> Counted {
        *self.living.borrow_mut().entry((kind, name)).or_insert(0) += 1;
        Counted { name, kind, ledger: self.clone() }
    }

    /// How many of a kind exist.
    pub(super) fn count(&self, kind: Kind) -> usize {
        let living = self.living.borrow();
        let of_kind = living.iter().filter(|((other, _), _)| *other == kind);
        of_kind.map(|(_, count)| count).sum()
    }

    pub(super) fn assert_empty(&self) {
        let living = self.living.borrow();
        assert!(living.is_empty(), "leaked: {living:?}");
    }
}

impl Counted {
    /// The same thing once more: what the kernel does to a descriptor on its way.
    pub(super) fn duplicate(&self) -> Self {
        self.ledger.issue(self.kind, self.name)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut living = self.ledger.living.borrow_mut();
        let count = living.get_mut(&(self.kind, self.name));
        let count = count.expect("it was counted when it was made");
        *count -= 1;
        if *count == 0 {
            living.remove(&(self.kind, self.name));
        }
    }
}
