//! Counters, declared once where they are counted: with their public names and meanings.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A public counter name with its help text: one counter, or several that labels tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// The part of the public name after the layer's prefix. Counters get `_total` appended. Names in `_ns` are
    /// nanoseconds, exported in seconds.
    pub name: &'static str,
    /// Help text, one line.
    pub help: &'static str,
    /// Whether the value may fall. If not, it is a counter.
    pub is_gauge: bool,
}

impl Family {
    /// A family whose values only rise.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, is_gauge: false }
    }

    /// A family whose values may fall.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, is_gauge: true }
    }
}

/// A counter as code reports it, and its public name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// The name in reports. A `*` stands for any text.
    pub name: &'static str,
    /// The family that exports it.
    pub family: Family,
    /// Labels that tell it from others of its family. The value `*` stands for the text of the `*` in `name`.
    pub labels: &'static [(&'static str, &'static str)],
}

/// All counters of a crate: the `TABLE` of each of its [`counters!`](crate::counters).
pub type Tables = &'static [&'static [Counter]];

/// A counter that several threads add to, by relaxed atomics.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares the counters of a layer, one line for each: `FIELD: MEANING`, or `FIELD = NAME: MEANING` if it is reported
/// under another name than the field's. The meaning is one of
/// | meaning | what it is outside |
/// |---|---|
/// | `"help"` | a family of its own, of the counter's name |
/// | `gauge "help"` | likewise, of what may shrink |
/// | `FAMILY { key: "value" }` | one of a [`Family`], by labels, if any |
///
/// The counters are fields of a structure, of type [`u64`] or `of Count`; or events, which are variants of an enum and
/// indices into an array; or a list, for names that are put together when they are reported. `TABLE` describes all of
/// them in order.
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
            /// Public name of each counter.
            $vis const TABLE: &[$crate::Counter] = &[$(
                $crate::counter!($crate::counter!(@name $field $($name)?), $($word)? $($help)? $({ $($labels)* })?)
            ),*];

            /// Calls `visit` with the name and value of each counter.
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
            /// Public name of each event's counter, in order.
            $vis const TABLE: &[$crate::Counter] = &[$(
                $crate::counter!(stringify!($name), $($word)? $($help)? $({ $($labels)* })?)
            ),*];

            /// Calls `visit` with the name and count of each event, in order.
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
