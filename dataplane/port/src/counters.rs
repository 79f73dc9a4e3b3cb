//! Counters: declared once, where they are counted, with what they are called outside and what they mean.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What one name and one line of help stand for outside: one counter, or several that are told apart by labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// The name behind that of the layer; `_total` follows for what only grows. `_ns` are nanoseconds, shown as
    /// seconds.
    pub name: &'static str,
    /// What it means, in a line.
    pub help: &'static str,
    /// It may shrink.
    pub is_gauge: bool,
}

impl Family {
    /// What only grows.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, is_gauge: false }
    }

    /// What may shrink.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, is_gauge: true }
    }
}

/// A counter as it is reported, and what it is outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// As it is reported. A `*` stands for any text.
    pub name: &'static str,
    /// What it is one of.
    pub family: Family,
    /// What tells it from others of its family; the value `*` is what the `*` of the name stands for.
    pub labels: &'static [(&'static str, &'static str)],
}

/// What a crate counts: the `TABLE` of each of its [`counters!`](crate::counters).
pub type Tables = &'static [&'static [Counter]];

/// A counter that several threads add to.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// What was counted.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares what a layer counts, a line for each counter: `FIELD: MEANING`, or `FIELD = NAME: MEANING` if it is not
/// reported under the name of the field. The meaning is one of
///
/// | meaning | what it is outside |
/// |---|---|
/// | `"help"` | a family of its own, of the counter's name |
/// | `gauge "help"` | likewise, of what may shrink |
/// | `FAMILY { key: "value" }` | one of a [`Family`], by labels, if any |
///
/// They are the fields of a structure, of [`u64`] or `of Count`; or events, the variants of an enum, as indices into an
/// array; or, for names that are made where they are reported, a list. `TABLE` describes them all, in their order.
#[macro_export]
macro_rules! counters {
    ($(#[$docs:meta])* $vis:vis struct $counters:ident { $($fields:tt)* }) => {
        $crate::counters! { @struct u64, u64::clone, $(#[$docs])* $vis $counters { $($fields)* } }
    };
    ($(#[$docs:meta])* $vis:vis struct $counters:ident of Count { $($fields:tt)* }) => {
        $crate::counters! { @struct $crate::Count, $crate::Count::get, $(#[$docs])* $vis $counters { $($fields)* } }
    };
    (@struct $number:ty, $value:expr, $(#[$docs:meta])* $vis:vis $counters:ident { $(
        $(#[$doc:meta])* $field:ident $(= $name:ident)?: $($word:ident)? $($help:literal)? $({ $($labels:tt)* })?
    ),* $(,)? }) => {
        $(#[$docs])*
        #[derive(Debug, Default)]
        $vis struct $counters {
            $($(#[$doc])* $vis $field: $number,)*
        }

        impl $counters {
            /// What each counter is outside.
            $vis const TABLE: &[$crate::Counter] = &[$(
                $crate::counter!($crate::counter!(@name $field $($name)?), $($word)? $($help)? $({ $($labels)* })?)
            ),*];

            /// Reports every counter.
            $vis fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit($crate::counter!(@name $field $($name)?), $value(&self.$field));)*
            }
        }
    };
    ($(#[$docs:meta])* $vis:vis enum $event:ident { $(
        $(#[$doc:meta])* $variant:ident = $name:ident: $($word:ident)? $($help:literal)? $({ $($labels:tt)* })?
    ),* $(,)? }) => {
        $(#[$docs])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $event {
            $($(#[$doc])* $variant,)*
        }

        impl $event {
            /// What the counter of each is outside, in their order.
            $vis const TABLE: &[$crate::Counter] = &[$(
                $crate::counter!(stringify!($name), $($word)? $($help)? $({ $($labels)* })?)
            ),*];

            /// Reports a count of each, in their order.
            $vis fn report(counts: impl IntoIterator<Item = u64>, visit: &mut dyn FnMut(&'static str, u64)) {
                Self::TABLE.iter().zip(counts).for_each(|(counter, count)| visit(counter.name, count));
            }
        }
    };
    ($(#[$docs:meta])* $vis:vis const $table:ident { $(
        $name:literal: $($word:ident)? $($help:literal)? $({ $($labels:tt)* })?
    ),* $(,)? }) => {
        $(#[$docs])*
        $vis const $table: &[$crate::Counter] = &[$(
            $crate::counter!($name, $($word)? $($help)? $({ $($labels)* })?)
        ),*];
    };
}

/// One line of [`counters!`].
#[doc(hidden)]
#[macro_export]
macro_rules! counter {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:ident) => { stringify!($name) };
    (@value *) => { "*" };
    (@value $value:literal) => { $value };
    ($name:expr, $help:literal) => {
        $crate::Counter { name: $name, family: $crate::Family::counter($name, $help), labels: &[] }
    };
    ($name:expr, gauge $help:literal) => {
        $crate::Counter { name: $name, family: $crate::Family::gauge($name, $help), labels: &[] }
    };
    ($name:expr, $family:ident $({ $($key:ident: $value:tt),* })?) => {
        $crate::Counter {
            name: $name,
            family: $family,
            labels: &[$($((stringify!($key), $crate::counter!(@value $value))),*)?],
        }
    };
}
