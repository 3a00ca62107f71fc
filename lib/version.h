/* SPDX-License-Identifier: Apache-2.0
 *
 * version.h: the version of all programs, and of the packages: the Makefile reads it here.
 */
#pragma once

#define MAYFLY_VERSION "0.1.0"
