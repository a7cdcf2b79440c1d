// SPDX-License-Identifier: GPL-2.0

//! C functions that Rust may call without further ado.

/// Declares safe functions that call one of C each.
///
/// Only what asks nothing of its caller belongs here: a C function that is defined for all
/// arguments that the types of the Rust function allow, in all contexts that its documentation
/// names.
///
/// # Examples
///
/// ```
/// kernel::safe_c! {
///     /// Lets others run; may sleep.
///     fn rest() = schedule();
/// }
///
/// rest();
/// ```
#[macro_export]
macro_rules! safe_c {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?
            = $c:ident($($value:expr),* $(,)?);
    )*) => {$(
        $(#[$meta])*
        #[inline]
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: It asks nothing of its caller, or it would not be listed.
            unsafe { $crate::bindings::$c($($value),*) }
        }
    )*};
}
