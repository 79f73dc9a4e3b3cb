//! Counters by their names.

/// Declares what a layer counts: a structure with a number for each counter, or an enum with an event for each, which
/// `NAMES` has in the same order. Either way a counter is one line, and its name is the one it is reported under.
#[macro_export]
macro_rules! counters {
    ($vis:vis struct $counters:ident { $($(#[$doc:meta])* $name:ident),* $(,)? }) => {
        #[derive(Debug, Default)]
        $vis struct $counters {
            $($(#[$doc])* $name: u64,)*
        }

        impl $counters {
            fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit(stringify!($name), self.$name);)*
            }
        }
    };
    ($(#[$docs:meta])* $vis:vis enum $event:ident { $($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)? }) => {
        $(#[$docs])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $event {
            $($(#[$doc])* $variant,)*
        }

        impl $event {
            const NAMES: &[&str] = &[$($name),*];
        }
    };
}
