//! The function table: the functions of a service, and how each is dispatched.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use berth_wire::rpc::{HandlerSchema, Lengths, fnv1a};

/// Where a function runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dispatch {
    /// On the core that receives the request.
    #[default]
    Inline,
    /// On the worker at the other end of this ring.
    Ring(RingIndex),
    /// A ring kernel on that worker, for which messages wait on the core that receives them.
    Queue(RingIndex),
}

impl Dispatch {
    /// The ring that leads to the worker.
    pub fn ring(self) -> Option<RingIndex> {
        match self {
            Self::Inline => None,
            Self::Ring(ring) | Self::Queue(ring) => Some(ring),
        }
    }
}

/// Index of a ring among those of its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RingIndex(pub usize);

/// A function that requests can name.
#[derive(Debug, Clone)]
pub struct Function {
    /// As configured; requests carry its hash, [`Function::id`].
    pub name: String,
    /// Arguments and results. Other lengths are refused.
    pub schema: HandlerSchema,
    /// Where it runs.
    pub mode: Dispatch,
    /// Time limit of one call. Several calls in a row that exceed it suspend the function for
    /// [`COOL_OFF`](crate::COOL_OFF). If a worker exceeds it, the service answers in its place.
    pub budget: Option<Duration>,
    /// Whether the handler itself checks for an `arg_len` beyond the frame, by
    /// [`Call::claimed_len`](crate::Call::claimed_len): the RPCs of the decoding server have their own status for it.
    pub checks_length: bool,
}

impl Function {
    /// A function that runs inline and without a time limit.
    pub fn new(name: &str, schema: HandlerSchema) -> Self {
        Self { name: name.to_owned(), schema, mode: Dispatch::Inline, budget: None, checks_length: false }
    }

    /// FNV-1a hash of the name, which requests carry.
    pub fn id(&self) -> u32 {
        fnv1a(&self.name)
    }
}

/// Index of a function in its [`FunctionTable`], in the order of registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FunctionIndex(pub usize);

/// Why functions do not make a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Two functions have this name.
    #[error("function {0:?} is registered twice")]
    Duplicate(String),
    /// These two names have the same id, so requests could not tell them apart.
    #[error("functions {0:?} and {1:?} have the same id {id:#010x}; rename one", id = fnv1a(.0))]
    Collision(String, String),
}

/// What dispatch needs of a function for each request: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Rule {
    pub(crate) args: Lengths,
    pub(crate) results: Lengths,
    pub(crate) budget: Option<Duration>,
    pub(crate) mode: Dispatch,
    pub(crate) checks_length: bool,
}

const _: () = assert!(size_of::<Rule>() == 64);

/// The functions of a service, found by id. Built once.
#[derive(Debug)]
pub struct FunctionTable {
    functions: Vec<Function>,
    rules: Vec<Rule>,
    /// Open addressing, at most half full. The ids are hashes already.
    buckets: Vec<(u32, u32)>,
    /// `calls_` followed by the name of each function.
    counter_names: Vec<&'static str>,
}

/// Index in a bucket without a function.
const EMPTY: u32 = u32::MAX;

impl FunctionTable {
    /// Builds the table. Counter names are kept for the life of the process, each once, so make tables only of
    /// functions that the operator names, not of names from peers.
    pub fn new(functions: Vec<Function>) -> Result<Self, TableError> {
        let mut buckets = vec![(0, EMPTY); (2 * functions.len()).next_power_of_two()];
        for (i, function) in functions.iter().enumerate() {
            let id = function.id();
            let mut at = id as usize & (buckets.len() - 1);
            while let (taken, other) = buckets[at]
                && other != EMPTY
            {
                if taken == id {
                    let (other, name) = (functions[other as usize].name.clone(), function.name.clone());
                    return Err(if other == name {
                        TableError::Duplicate(name)
                    } else {
                        TableError::Collision(other, name)
                    });
                }
                at = (at + 1) & (buckets.len() - 1);
            }
            buckets[at] = (id, i as u32);
        }
        let rules = functions.iter().map(|function| Rule {
            args: function.schema.arg_lengths(),
            results: function.schema.result_lengths(),
            budget: function.budget,
            mode: function.mode,
            checks_length: function.checks_length,
        });
        let rules = rules.collect();
        let counter_names = functions.iter().map(|f| kept(format!("calls_{}", f.name))).collect();
        Ok(Self { functions, rules, buckets, counter_names })
    }

    /// Index of the function with this id.
    #[inline]
    pub fn find(&self, id: u32) -> Option<FunctionIndex> {
        let mask = self.buckets.len() - 1;
        let mut at = id as usize & mask;
        while let (found, index) = self.buckets[at & mask]
            && index != EMPTY
        {
            if found == id {
                return Some(FunctionIndex(index as usize));
            }
            at += 1;
        }
        None
    }

    /// The rule for the function at `index`, which must be of this table.
    #[inline]
    pub(crate) fn rule(&self, index: FunctionIndex) -> &Rule {
        &self.rules[index.0]
    }

    /// All functions, in the order of their indices.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    pub(crate) fn counter_names(&self) -> &[&'static str] {
        &self.counter_names
    }
}

/// A static copy of the text, one per process, however many tables use it.
pub(crate) fn kept(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    // A panic elsewhere leaves a set of whole names.
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(&*name) {
        return known;
    }
    let name = &*name.leak();
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Function {
        Function::new(name, HandlerSchema::new(&[], &[]).unwrap())
    }

    #[test]
    fn every_function_is_found_and_no_other() {
        for n in 0..70 {
            let names: Vec<_> = (0..n).map(|i| format!("f{i}")).collect();
            let table = FunctionTable::new(names.iter().map(|name| function(name)).collect()).unwrap();
            for (i, name) in names.iter().enumerate() {
                assert_eq!(table.find(fnv1a(name)), Some(FunctionIndex(i)));
            }
            for unknown in ["", "g0", "f70"] {
                assert_eq!(table.find(fnv1a(unknown)), None);
            }
        }
    }

    #[test]
    fn names_and_ids_are_unique() {
        let twice = FunctionTable::new(vec![function("a"), function("b"), function("a")]);
        assert_eq!(twice.unwrap_err(), TableError::Duplicate("a".into()));
        // A well-known pair that collides under 32-bit FNV-1a.
        let error = FunctionTable::new(vec![function("costarring"), function("liquid")]).unwrap_err();
        assert_eq!(error, TableError::Collision("costarring".into(), "liquid".into()));
        assert_eq!(error.to_string(), r#"functions "costarring" and "liquid" have the same id 0x5e4daa9d; rename one"#);
    }
}
