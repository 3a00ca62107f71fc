/* SPDX-License-Identifier: Apache-2.0
 *
 * serial.c: see serial.h. Registers as in the 16550A data sheet. Hostile: what the guest writes.
 * The transmitter is always empty: a byte is sent when it is written. So each byte is followed by
 * the "transmitter empty" interrupt, if the guest enabled that. In loopback (MCR bit 4) bytes come
 * back as input; the driver uses that to detect the chip. The interrupt line is edge-triggered:
 * each new reason pulses it, and the driver reads IIR until no reason is left.
 */
#include "vmm/serial.h"

enum { R_DATA, R_IER, R_IIR_FCR, R_LCR, R_MCR, R_LSR, R_MSR, R_SCR };
enum {
	LCR_DLAB = 0x80,
	IER_RDI = 1,
	IER_THRI = 2,
	MCR_LOOP = 0x10,
	MCR_OUT2 = 8,
	IIR_NONE = 1,
	IIR_THRI = 2,
	IIR_RDI = 4,
	IIR_FIFO = 0xc0,
	FCR_CLEAR_RX = 2,
	LSR_DATA = 1,
	LSR_EMPTY = 0x60,
	MSR_READY = 0xb0
};

void serial_init(
	struct serial *s, void *ctx, void (*irq)(void *ctx), void (*out)(void *ctx, uint8_t byte))
{
	*s = (struct serial){.ctx = ctx, .irq = irq, .out = out};
	pthread_mutex_init(&s->lock, NULL);
}

void serial_fini(struct serial *s)
{
	pthread_mutex_destroy(&s->lock);
}

static void tell(struct serial *s)
{
	if ((s->thre_due && (s->ier & IER_THRI)) || (s->fifo_n && (s->ier & IER_RDI)))
		s->irq(s->ctx);
}

static bool push(struct serial *s, uint8_t v)
{
	if (s->fifo_n == SERIAL_FIFO)
		return false;
	s->fifo[(s->fifo_at + s->fifo_n++) % SERIAL_FIFO] = v;
	return true;
}

static uint8_t pop(struct serial *s)
{
	uint8_t v;

	if (!s->fifo_n)
		return 0;
	v = s->fifo[s->fifo_at];
	s->fifo_at = (s->fifo_at + 1) % SERIAL_FIFO;
	if (--s->fifo_n == 0 && s->room)
		s->room(s->room_ctx);
	return v;
}

size_t serial_input(struct serial *s, const uint8_t *p, size_t n)
{
	size_t i = 0;

	pthread_mutex_lock(&s->lock);
	while (i < n && push(s, p[i]))
		i++;
	if (i)
		tell(s);
	pthread_mutex_unlock(&s->lock);
	return i;
}

void serial_write(struct serial *s, unsigned int reg, uint8_t v)
{
	pthread_mutex_lock(&s->lock);
	switch (reg) {
	case R_DATA:
		if (s->lcr & LCR_DLAB) {
			s->dll = v;
			break;
		}
		if (s->mcr & MCR_LOOP)
			push(s, v);
		else
			s->out(s->ctx, v);
		s->thre_due = true;
		tell(s);
		break;
	case R_IER:
		if (s->lcr & LCR_DLAB) {
			s->dlm = v;
			break;
		}
		s->thre_due |= (v & IER_THRI) && !(s->ier & IER_THRI);
		s->ier = v & 0xf;
		tell(s);
		break;
	case R_IIR_FCR:
		s->fcr = v;
		if (v & FCR_CLEAR_RX) {
			s->fifo_n = 0;
			if (s->room)
				s->room(s->room_ctx);
		}
		break;
	case R_LCR:
		s->lcr = v;
		break;
	case R_MCR:
		s->mcr = v & 0x1f;
		break;
	case R_SCR:
		s->scr = v;
		break;
	default:
		break;
	}
	pthread_mutex_unlock(&s->lock);
}

static uint8_t read_iir(struct serial *s)
{
	uint8_t fifo = s->fcr & 1 ? IIR_FIFO : 0;

	if (s->fifo_n && (s->ier & IER_RDI))
		return fifo | IIR_RDI; /* until the data is read */
	if (!s->thre_due || !(s->ier & IER_THRI))
		return fifo | IIR_NONE;
	s->thre_due = false; /* reading it is the acknowledgement */
	return fifo | IIR_THRI;
}

static uint8_t read_msr(const struct serial *s)
{
	/* in loopback the outputs come back as inputs: RTS to CTS, DTR to DSR, OUT1 to RI, OUT2 to
	 * DCD */
	if (s->mcr & MCR_LOOP)
		return (uint8_t)((s->mcr & 2) << 3 | (s->mcr & 1) << 5 | (s->mcr & 4) << 4 |
				 (s->mcr & MCR_OUT2) << 4);
	return MSR_READY;
}

uint8_t serial_read(struct serial *s, unsigned int reg)
{
	uint8_t v = 0;

	pthread_mutex_lock(&s->lock);
	switch (reg) {
	case R_DATA:
		v = s->lcr & LCR_DLAB ? s->dll : pop(s);
		break;
	case R_IER:
		v = s->lcr & LCR_DLAB ? s->dlm : s->ier;
		break;
	case R_IIR_FCR:
		v = read_iir(s);
		break;
	case R_LCR:
		v = s->lcr;
		break;
	case R_MCR:
		v = s->mcr;
		break;
	case R_LSR:
		v = LSR_EMPTY | (s->fifo_n ? LSR_DATA : 0);
		break;
	case R_MSR:
		v = read_msr(s);
		break;
	case R_SCR:
		v = s->scr;
		break;
	default:
		break;
	}
	pthread_mutex_unlock(&s->lock);
	return v;
}

void serial_kick(struct serial *s)
{
	pthread_mutex_lock(&s->lock);
	s->thre_due = true;
	tell(s);
	pthread_mutex_unlock(&s->lock);
}

void serial_save(struct serial *s, struct buf *out)
{
	const uint8_t r[8] = {s->ier, s->lcr, s->mcr, s->scr, s->fcr, s->dll, s->dlm, s->thre_due};

	buf_put(out, r, sizeof(r));
}

bool serial_load(struct serial *s, struct cur *in)
{
	uint8_t r[8];

	if (!cur_copy(in, r, sizeof(r)))
		return false;
	s->ier = r[0] & 0xf;
	s->lcr = r[1];
	s->mcr = r[2] & 0x1f;
	s->scr = r[3];
	s->fcr = r[4];
	s->dll = r[5];
	s->dlm = r[6];
	s->thre_due = r[7] != 0;
	return true;
}
