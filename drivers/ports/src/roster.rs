//! Makes the roster from its lines.

/// One line for each driver: its settings, and the feature that it is built in by, where it is one.
macro_rules! roster {
    ($($driver:ident $(if $feature:tt)?,)*) => {
        /// `port.driver` with the keys that belong to it.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Driver {
            $(#[doc = concat!("`", stringify!($driver), "`")] $driver($driver),)*
        }

        /// The words of `port.driver`, each with what it means.
        pub const WORDS: &[(&str, &str)] = &[$(($driver::WORD, $driver::DOC)),*];

        /// The keys of `[[port]]` that belong to drivers.
        pub static KEYS: &[&[Owned]] = &[$($driver::KEYS),*];

        /// The keys of `[port.limits]` that belong to drivers.
        pub static LIMITS: &[&[Owned]] = &[$($driver::LIMITS),*];

        /// Whether this program was built with a feature.
        pub fn has_feature(feature: &str) -> bool {
            [$($(($feature, cfg!(feature = $feature)),)?)*].contains(&(feature, true))
        }

        impl Driver {
            /// Reads `driver` and the keys that belong to it; mistakes are noted.
            pub fn read(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Self> {
                let word = t.word("driver");
                let words: Vec<_> = WORDS.iter().map(|(word, _)| format!("\"{word}\"")).collect();
                let (last, others) = words.split_last()?;
                let wanted = format!("driver = {} or {last}", others.join(", "));
                let word = t.require("driver", word, wanted)?;
                match word.value {
                    $($driver::WORD => {
                        $(if !(reading.has_feature)($feature) {
                            t.sink().wrong(&word, not_built($driver::LIBRARY, $feature));
                        })?
                        $driver::read(t, reading).map(Self::$driver)
                    })*
                    _ => None,
                }
            }

            /// The word in the configuration and in the ready line.
            pub fn word(&self) -> &'static str {
                match self {
                    $(Self::$driver(_) => $driver::WORD,)*
                }
            }

            /// What others must know of it.
            pub fn traits(&self) -> Traits {
                match self {
                    $(Self::$driver(settings) => settings.traits(),)*
                }
            }
        }

        impl std::fmt::Display for Driver {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$driver(settings) => write!(f, "{} {settings}", $driver::WORD),)*
                }
            }
        }
    };
}

pub(crate) use roster;
