//! The rows of a table: each peer, and some of them a second time with another allocator.

use anyhow::{Result, bail};

use crate::options::Placement;
use crate::peers::{self, Peer};

/// A peer as it is started.
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) peer: Box<dyn Peer>,
    keeps_pages: bool,
}

impl Variant {
    /// What both processes get as their environment.
    pub(crate) fn environment(&self) -> &'static [(&'static str, &'static str)] {
        if self.keeps_pages { &KEPT_PAGES } else { &[] }
    }

    /// Why it need not be started for such calls, if it need not.
    pub(crate) fn refuses(
        &self,
        bytes: usize,
        placement: Placement,
        in_flight: usize,
    ) -> Option<&'static str> {
        let habits = self.peer.habits();
        if habits.spins && placement == Placement::SameCore {
            return Some("spins");
        }
        if in_flight > 1 && !habits.pipelines {
            return Some("one at a time");
        }
        self.peer.refuses(bytes)
    }
}

/// All variants whose own or whose peer's name is among `wanted`; all if none is wanted.
pub(crate) fn chosen(wanted: &[String]) -> Result<Vec<Variant>> {
    let mut variants = Vec::new();
    for peer in peers::all() {
        if peer.habits().allocates {
            let name = format!("{}{KEPT_PAGES_SUFFIX}", peer.name());
            variants.push(Variant { name, peer: peers::named(peer.name())?, keeps_pages: true });
        }
        variants.push(Variant { name: peer.name().to_owned(), peer, keeps_pages: false });
        // As it comes first.
        let last = variants.len() - 1;
        if variants[last].peer.habits().allocates {
            variants.swap(last - 1, last);
        }
    }
    let is = |variant: &Variant, name: &str| variant.name == name || variant.peer.name() == name;
    if let Some(unknown) = wanted.iter().find(|name| !variants.iter().any(|v| is(v, name))) {
        bail!("no peer {unknown}; `--list` tells which there are");
    }
    if !wanted.is_empty() {
        variants.retain(|variant| wanted.iter().any(|name| is(variant, name)));
    }
    Ok(variants)
}

const KEPT_PAGES_SUFFIX: &str = " +kept pages";

/// Makes glibc's allocator keep what was freed, and the page tables with it.
const KEPT_PAGES: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "4294967296"),
    ("MALLOC_TRIM_THRESHOLD_", "8589934592"),
    ("MALLOC_TOP_PAD_", "268435456"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_spins_has_no_row_on_one_core() {
        let spinning = chosen(&["bare spin".to_owned()]).unwrap().remove(0);
        assert_eq!(spinning.refuses(0, Placement::SameCore, 1), Some("spins"));
        assert_eq!(spinning.refuses(0, Placement::CrossCore, 1), None);
        assert_eq!(spinning.refuses(0, Placement::CrossCore, 8), Some("one at a time"));
    }

    #[test]
    fn a_name_that_nobody_has_is_told() {
        let error = chosen(&["pipe".to_owned(), "pigeon".to_owned()]).err().unwrap();
        assert!(error.to_string().contains("pigeon"), "{error}");
    }
}
