// SPDX-License-Identifier: GPL-2.0

//! C functions that need nothing from their Rust caller.

/// Declares safe functions, each of which calls one C function.
///
/// The C function must be defined for all arguments that the types of the Rust function allow, and
/// in all contexts that its documentation names.
///
/// # Examples
///
/// ```
/// kernel::safe_c! {
///     /// Lets other tasks run; may sleep.
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
