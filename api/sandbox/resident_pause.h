/* SPDX-License-Identifier: Apache-2.0
 *
 * resident_pause.h: pause without a checkpoint: the VM stops where it is and keeps its memory. It takes milliseconds and writes no
 * memory. The pause is lost with its monitor or the host. mayflyd's loop.
 */
#pragma once

#include "api/sandbox/sandbox.h"

/* The steps of OP_PAUSE_MEMORY; the client is the operation's. */
void resident_pause(struct sandbox *sb);
void resident_pause_late(struct sandbox *sb); /* the deadline of a step passed */
/* The steps of OP_RESUME_MEMORY. */
void resident_resume_asked(struct sandbox *sb);
void resident_resume_late(struct sandbox *sb);
/* To be called when its monitor was adopted: finishes or undoes what an earlier daemon began. */
void resident_take_up(struct sandbox *sb);
