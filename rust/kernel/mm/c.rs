// SPDX-License-Identifier: GPL-2.0

//! C functions that need nothing from their Rust caller.

/// Declares safe functions, each of which calls one C function.
///
/// As in an `unsafe extern` block, the `unsafe` is a promise of who writes it: each of these C
/// functions is defined for all arguments that the types of the Rust function allow, in all
/// contexts that its documentation names. It has as many arguments as the Rust function.
///
/// # Examples
///
/// ```
/// kernel::safe_c! {
///     // SAFETY: It has no argument.
///     unsafe extern "C" {
///         /// Lets other tasks run; may sleep.
///         fn rest() = schedule();
///     }
/// }
///
/// rest();
/// ```
#[macro_export]
macro_rules! safe_c {
    (unsafe extern "C" {$(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?
            = $c:ident($($value:expr),* $(,)?);
    )*}) => {$(
        $(#[$meta])*
        #[inline]
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            // What is unsafe in a value would need a block of its own. What it borrows lives until
            // the call is over.
            match ($($value,)*) {
                // SAFETY: By the promise of the block.
                ($($arg,)*) => unsafe { $crate::bindings::$c($($arg),*) },
            }
        }
    )*};
}
