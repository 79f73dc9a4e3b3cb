//! What the node counts: requests by operation, events of leases, and what holders use of their quotas.

use std::collections::BTreeMap;

use berth_lease::{Item, Quota};
use berth_port::{Family, Tables};
use berth_wire::fabric::Op;

use crate::{discovery, host::Host, node::Node, tasklet};

/// Counts of requests by operation: done and refused.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) by_op: Vec<(Op, [u64; 2])>,
    pub(crate) counters: Counters,
}

/// The node's counters, without those of its bindings.
pub const COUNTERS: Tables =
    &[Counters::TABLE, OPS, HOLDERS, tasklet::Counters::TABLE, discovery::Counts::TABLE, discovery::RelayCounts::TABLE];

const OPS_DONE: Family = Family::counter("ops", "ops of the control plane that were done");
const OPS_REFUSED: Family = Family::counter("ops_refused", "ops of the control plane that were refused");

berth_port::counters! {
    #[derive(Clone, Copy)]
    pub(crate) struct Counters {
        /// Gauges; set just before they are reported.
        leases: gauge "leases that stand",
        leased_bytes: gauge "bytes of leases that stand",
        unknown_ops: OPS_REFUSED { op: "unknown" },
        leases_expired: "leases that expired",
        teardowns_failed: "leases whose binding could not be torn down",
    }
}

berth_port::counters! {
    const OPS {
        "op_*_refused": OPS_REFUSED { op: * },
        "op_*": OPS_DONE { op: * },
    }
}

const USED: Family = Family::gauge(
    "holder_used",
    "what a presenter that a policy names has of its quota; of all others, for each item, who has most",
);
const QUOTA: Family = Family::gauge("holder_quota", "how much that presenter, or each of the others, may have");

berth_port::counters! {
    /// By holder and [`Item`].
    const HOLDERS {
        "holder_*_leases_used": USED { holder: *, item: "leases" },
        "holder_*_bytes_used": USED { holder: *, item: "bytes" },
        "holder_*_handles_used": USED { holder: *, item: "handles" },
        "holder_*_attachments_used": USED { holder: *, item: "attachments" },
        "holder_*_proxies_used": USED { holder: *, item: "proxies" },
        "holder_*_bindings_used": USED { holder: *, item: "bindings" },
        "holder_*_page_state_used": USED { holder: *, item: "page_state" },
        "holder_*_functions_used": USED { holder: *, item: "functions" },
        "holder_*_composites_used": USED { holder: *, item: "composites" },
        "holder_*_leases_quota": QUOTA { holder: *, item: "leases" },
        "holder_*_bytes_quota": QUOTA { holder: *, item: "bytes" },
        "holder_*_handles_quota": QUOTA { holder: *, item: "handles" },
        "holder_*_attachments_quota": QUOTA { holder: *, item: "attachments" },
        "holder_*_proxies_quota": QUOTA { holder: *, item: "proxies" },
        "holder_*_bindings_quota": QUOTA { holder: *, item: "bindings" },
        "holder_*_page_state_quota": QUOTA { holder: *, item: "page_state" },
        "holder_*_functions_quota": QUOTA { holder: *, item: "functions" },
        "holder_*_composites_quota": QUOTA { holder: *, item: "composites" },
    }
}

impl Default for Counts {
    fn default() -> Self {
        let by_op = Op::ALL.iter().map(|op| (*op, [0; 2])).collect();
        Self { by_op, counters: Counters::default() }
    }
}

impl<H: Host> Node<H> {
    /// Calls `visit` with the name and value of each counter: requests by operation, done and refused, and events of
    /// leases.
    pub fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        for (op, [done, refused]) in &self.counts.by_op {
            let name = op.name().to_ascii_lowercase();
            visit(&format!("op_{name}"), *done);
            visit(&format!("op_{name}_refused"), *refused);
        }
        let (leases, leased_bytes) = self.leases.live();
        Counters { leases, leased_bytes, ..self.counts.counters }.report(&mut |name, count| visit(name, count));
        self.report_quotas(visit);
        if let Some(tasklets) = &self.tasklets {
            tasklets.counters().report(&mut |name, count| visit(name, count));
        }
        let mut of_bindings = BTreeMap::<String, u64>::new();
        for binding in &self.bindings {
            binding.counters(&mut |name, count| *of_bindings.entry(name.to_owned()).or_default() += count);
        }
        for (name, count) in &of_bindings {
            visit(name, *count);
        }
        self.discovery.counters(&mut |name, count| visit(name, count));
    }

    /// Reports each presenter with a policy of its own, and for all others the highest usage of each item.
    fn report_quotas(&self, visit: &mut dyn FnMut(&str, u64)) {
        let quotas = self.leases.quotas();
        let mut most = Quota::NOTHING;
        for (_, usage) in self.leases.usages().filter(|(holder, _)| !quotas.of.contains_key(holder)) {
            for item in Item::ALL {
                most[item] = most[item].max(usage[item]);
            }
        }
        let bytes = self.regions().iter().map(|(region, _)| self.leases.capacity(region)).sum();
        let capacity = |item| match item {
            Item::Leases => self.leases.config().capacity as u64,
            Item::Bytes => bytes,
            _ => u64::MAX,
        };
        let named = quotas.of.iter().map(|(id, quota)| (format!("{id:032x}"), self.leases.usage(*id), *quota));
        for (holder, usage, quota) in named.chain([("others".to_owned(), most, quotas.others)]) {
            for item in Item::ALL {
                let name = item.name();
                visit(&format!("holder_{holder}_{name}_used"), usage[item]);
                visit(&format!("holder_{holder}_{name}_quota"), quota[item].min(capacity(item)));
            }
        }
    }
}
