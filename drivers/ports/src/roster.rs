//! Macros that turn the lists of drivers into types.

/// Takes one line per driver: its settings, and the feature that builds it in, if any.
macro_rules! roster {
    ($($driver:ident $(if $feature:tt)?,)*) => {
        /// A value of `port.driver`, with those of the keys that belong to it.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Driver {
            $(#[doc = concat!("`", stringify!($driver), "`")] $driver($driver),)*
        }

        /// The words of `port.driver`, each with its meaning.
        pub const WORDS: &[(&str, &str)] = &[$(($driver::WORD, $driver::DOC)),*];

        /// Keys of `[[port]]` that belong to drivers.
        pub static KEYS: &[&[Owned]] = &[$($driver::KEYS),*];

        /// Keys of `[port.limits]` that belong to drivers.
        pub static LIMITS: &[&[Owned]] = &[$($driver::LIMITS),*];

        /// Declarations of the counters of every driver that is built in.
        pub const COUNTERS: &[&[Tables]] = &[$($(#[cfg(feature = $feature)])? <$driver as Open>::COUNTERS),*];

        /// Features that this program was built with.
        pub fn features() -> impl Iterator<Item = &'static str> {
            let all = [$($(($feature, cfg!(feature = $feature)),)?)*];
            all.into_iter().filter_map(|(feature, built)| built.then_some(feature))
        }

        /// Whether this program was built with this feature.
        pub fn has_feature(feature: &str) -> bool {
            features().any(|built| built == feature)
        }

        impl Driver {
            /// Reads `driver` and the keys that belong to it; notes mistakes.
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

            /// The driver's word in the configuration and in the ready line.
            pub fn word(&self) -> &'static str {
                match self {
                    $(Self::$driver(_) => $driver::WORD,)*
                }
            }

            /// Properties that matter outside of the driver.
            pub fn traits(&self) -> Traits {
                match self {
                    $(Self::$driver(settings) => settings.traits(),)*
                }
            }

            /// Opens the port as far as possible before its threads run. Returns its queues, and entries of the ready
            /// line besides its address.
            pub fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Queue>, Facts)> {
                match self {
                    $(Self::$driver(settings) => {
                        $(#[cfg(not(feature = $feature))]
                        {
                            let _ = (settings, opening);
                            anyhow::bail!(not_built($driver::LIBRARY, $feature))
                        })?
                        $(#[cfg(feature = $feature)])?
                        {
                            let (queues, facts) = settings.queues(opening)?;
                            Ok((queues.into_iter().map(Queue::$driver).collect(), facts))
                        }
                    })*
                }
            }
        }

        /// One queue of a port, of any driver.
        pub enum Queue {
            $($(#[cfg(feature = $feature)])? #[doc = concat!("`", stringify!($driver), "`")]
            $driver(<$driver as Open>::Queue),)*
        }

        impl OpenQueue for Queue {
            fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output> {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$driver(queue) => queue.open(user),)*
                }
            }

            fn polled(&mut self) -> Option<Polled> {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$driver(queue) => queue.polled(),)*
                }
            }

            fn binding(&self, port: &str) -> Option<Box<dyn Binding>> {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$driver(queue) => queue.binding(port),)*
                }
            }

            fn frames(&self) -> Option<Result<Arc<Pages>, String>> {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$driver(queue) => queue.frames(),)*
                }
            }
        }

        impl std::fmt::Debug for Queue {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("Queue")
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

/// Takes one line per driver that clients can send from: its word, its meaning, and the feature that builds it in.
macro_rules! clients {
    ($($driver:ident $word:literal $(if $feature:tt $library:literal)?: $doc:literal,)*) => {
        /// A driver that a client can send from.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ClientDriver {
            $(#[doc = $doc] $driver,)*
        }

        impl ClientDriver {
            /// All of them, each with its meaning.
            pub const ALL: &[(Self, &str)] = &[$((Self::$driver, $doc)),*];

            /// Its word on the command line and in reports.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$driver => $word,)*
                }
            }

            /// Opens and connects a port on the calling thread, and passes it to `user`.
            pub fn connect<U: PortUser>(self, client: &Client<'_>, user: U) -> anyhow::Result<()> {
                match self {
                    $(Self::$driver => {
                        $(#[cfg(not(feature = $feature))]
                        {
                            let _ = (client, user);
                            anyhow::bail!(not_built($library, $feature))
                        })?
                        $(#[cfg(feature = $feature)])?
                        {
                            <$driver as Connect>::connect(client, user)
                        }
                    })*
                }
            }
        }
    };
}

pub(crate) use clients;
pub(crate) use roster;
