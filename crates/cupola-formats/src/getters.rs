//! Typed access to the values of a config or of metadata, which differ only in how a value is stored.

use crate::error::KeyError;

/// A value converted, if there is one; `error` tells that it is not what it has to be.
pub(crate) fn convert<V, T>(
    value: Option<V>,
    convert: impl FnOnce(V) -> Option<T>,
    error: impl FnOnce() -> KeyError,
) -> Result<Option<T>, KeyError> {
    value.map(|value| convert(value).ok_or_else(error)).transpose()
}

/// Pairs of getters, required and optional, for a type with `get(key)` and `error(key, expected)`.
macro_rules! getters {
    ($owner:ty; $($(#[$doc:meta])* $required:ident, $optional:ident -> $type:ty, $expected:ident, $convert:expr;)*) => {
        impl $owner {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// The key is missing or its value is something else.
                pub fn $required(&self, key: &str) -> Result<$type, $crate::KeyError> {
                    self.$optional(key)?.ok_or_else(|| self.error(key, $expected))
                }

                $(#[$doc])*
                /// `None` if the key is missing.
                ///
                /// # Errors
                /// The value is something else.
                pub fn $optional(&self, key: &str) -> Result<Option<$type>, $crate::KeyError> {
                    $crate::getters::convert(self.get(key), $convert, || self.error(key, $expected))
                }
            )*
        }
    };
}
pub(crate) use getters;
