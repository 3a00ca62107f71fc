/* SPDX-License-Identifier: Apache-2.0
 *
 * quota.h: limits that the file system itself keeps: a project is a number that files carry, and the file system counts the bytes and inodes
 * of all files with one number (XFS, and ext4 with the feature "project"; mounted with prjquota). mayfly-priv, root. Which files, and
 * which numbers, comes from the daemon: hostile.
 */
#pragma once

#include "lib/proto_priv.h"

/* The files of sandboxes and of claims have numbers of their own: each kind has so many. */
#define QUOTA_PROJECTS (1u << 28)

/* The number of the project on the disk. */
uint32_t quota_project(bool claim, uint32_t number);
/* Does the file system of this descriptor count projects and enforce their limits? */
bool quota_is_there(int fd);
/* Gives the file or folder (with what is made in it from now on) to the project. -EOPNOTSUPP: this file system has no projects. */
int quota_give(int fd, uint32_t project);
/* Sets the limits; 0: none. */
int quota_limit(int fd, uint32_t project, const struct priv_quota *limit);
int quota_usage(int fd, uint32_t project, struct priv_quota *used);
