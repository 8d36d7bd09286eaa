"""General categories of Unicode 15.1, the version whose classes the reference ids were made with.

Regular expression engines carry tables of their own version, so that a character added last year would be a letter
with one release of a package and unassigned with the next. Patterns are therefore expanded to these ranges.
Source: Unicode Character Database 15.1, UnicodeData.txt, third field.
"""

from functools import cache

# Runs of code points, ascending: "gap" or "gap.length" in base 36, gap counted from the end of the run before.
_RUNS = {
    "L": (  # letters
        "1t.q 6.q 1b a 4 5.n 1.v 1.cq 4.c e.5 7 1 3l.5 1.2 2.4 1 6 1.3 1 1.k 1.2b 1.3v 8.4m 1.12 2 "
        "6.15 1z.r 4.4 19.17 z.2 1.2r 1 f.2 7.2 a.3 2 g 1.u t.2h b o.x 9.2 4 5.m 4 9 3 n.p 7.b 5.o "
        "1.6 h.16 1m.1i 3 i 7.a f.g 4.8 2.2 2.m 1.7 1 3.4 3 g d.2 1.3 e.2 a 8.6 4.2 2.m 1.7 1.2 1.2 "
        "1.2 v.4 1 j.3 g.9 1.3 1.m 1.7 1.2 1.5 3 i f.2 n b.8 2.2 2.m 1.7 1.2 1.5 3 u.2 1.3 f h 1.6 "
        "3.3 1.4 3.2 1 1.2 3.2 3.3 3.c m 1g.8 1.3 1.n 1.g 3 q.3 2 2.2 u 4.8 1.3 1.n 1.a 1.5 3 v.2 "
        "1.2 f.2 h.9 1.3 1.15 2 g 5.3 8.3 o.6 5.i 3.o 1.9 1 2.7 1m.1c 1.2 c.7 1m.2 1 1.5 1.o 1 1.a "
        "1.2 9 2.5 1 l.4 w 1r.8 1.10 r.5 37.17 k g.6 4.4 3 3.2 7.3 4.d c h.12 1 5 2.17 1.99 1.4 2.7 "
        "1 1.4 2.15 1.4 2.x 1.4 2.7 1 1.4 2.f 1.1l 1.4 2.1v 11.g g.2e 2.6 3.h8 2.h 1.q 5.23 6.8 7.i "
        "d.j e.i e.d 1.3 f.1g z 4 1v.2h 7.5 2.y 1 5.1y a.v 1d.u 2.5 b.18 4.q 1i.n 9.1h 2a 2l.1b h.8 "
        "1i.u d.2 a.18 q.10 15.3 a.10 2.9 7.17 2.3 15.4 1.6 1.2 3 5.5c 1s.7q 2.6 2.12 2.6 2.8 1 1 1 "
        "1.v 2.1h 1.7 1 3.3 1.7 3.4 2.6 4.d 5.3 1.7 38 d g.d 2t 4 2.a 1 3.5 6 1 1 1.4 1.b 2.4 5.5 4 "
        "1g.2 22j.6d 6.4 3.2 c.12 1 5 2.1k 7 g.n 9.7 1.7 1.7 1.7 1.7 1.7 1.7 1.7 28 d1.2 16.5 5.2 "
        "4.2e 6.3 1.2i 1.4 5.17 1.2m h.w 1c.g e8.534 1s.h3h 1v.1a 2.7h 3.g a.2 k.1b g.v 2.1y 1d.9 "
        "2.2v 2.1s 5.2 1 1.5 o.g 1.3 1.4 1.n t.1g e.1e 1q.6 3 1.2 b.s a.n p.t 7.1b s g.5 1.a a.5 "
        "1.15 n.3 1.8 k.n 3 3.1e 1 3.2 2.5 2 1 o.3 2.b 7.3 c.6 2.6 2.6 9.7 1.7 1.17 1.e 6.37 t.8mc "
        "c.n 4.1d 6is.a6 2.2y 12.7 c.5 5 1.a 1.d 1.5 1 1.2 1.2 1.30 x.a3 i.1s 2.1i 14.c 38.5 1.3r "
        "10.q 6.q b.2h 3.6 2.6 2.6 2.3 z.c 1.q 1.j 1.2 1.f 2.e y.3f at.t 3.1d 1b.w d.k 1.8 6.12 a.u "
        "2.10 4.8 1c.4e i.10 4.10 4.14 8.1g c.b 1.f 1.7 1.2 1.b 1.f 1.7 1.2 1v.8n 9.m a.8 o.6 1.16 "
        "1.9 1x.6 2 1.18 1.2 3 2.n a.n 9.v 1t.j 1.2 a.m a.q 1y.1k 6.2 1s f.4 1.3 1.t 16.t 3.t z.8 "
        "1.s r.1i a.m a.j d.i 32.21 1j.1f d.1f d.10 9o.16 6.2 26.t a 8.m 16.i 1a.l r.n c.1h 1l.2 2 "
        "d.19 w.p q.10 t 2 8.z 3 c.1c e.4 l 1 z.i 1.p j.2 1r.7 1 1.4 1.f 1.a 7.1b 12.8 2.2 2.m 1.7 "
        "1.2 1.5 3 i c.5 4e.1h i.4 k.3 u.1c k.2 1 54.1b 15.4 10.1c k 1n.17 d 1z.r 11.7 55.18 38.1s "
        "v.8 2 2.8 1.2 1.o f 1 2m.8 2.13 g 1 s a.14 7 l b.1a j i.21 7b.9 1.11 h 1d.u 34.7 1.2 1.12 "
        "l p.6 1.2 1.w e 93.j f 1.d 1.y 3g 27.pm 6e.5g 218.2p f.ts h.6 33t.g7 6nt.ft 7.v h.27 h.u "
        "i.1c g.4 v.l 5.j j4.1s 3k.23 5 1u.d 1s.2 1 s.4qg 8.ye 16.9 6w7.4 1.7 1.2 1.83 f t.3 2 e.4 "
        "8.b0 1s4.2z 5.d 3.9 7.a 4me.2d 1.1z 1.2 2 2.2 2.4 1.c 1 1.7 1.1t 1.4 2.8 1.7 1.s 1.4 1.5 1 "
        "3.7 1.9g 2.p 1.p 1.v 1.p 1.v 1.p 1.v 1.p 1.v 1.p 1.8 1f8.v 6.6 79.1q 42.19 a.7 g 8x.u i.18 "
        "dg.s l0.7 1.4 1.2 1.f 1.5h 1n.1w 7 xg.4 1.r 1.2 1 2 1.a 1.4 1 1 6 4 1 1 1.3 1.2 1 2 1 1 1 "
        "1 1.2 1 2.4 1.7 1.4 1.4 1 1.a 1.h 5.3 1.5 1.h 3es.wyo w.37e 6.66 2.4g2 e.5rl f.ha 1wi.f2 "
        "15u.3t7 5.38g "
    ),
    "M": (  # marks
        "lc.34 7n.7 7b.19 1 1.2 1.2 1 20.b 1c.l g 2t.7 2.6 2.2 1.4 z u.r 2j.b 1m.9 9 o.4 1.9 1.3 "
        "1.5 17.3 1o.8 16.o 1.x 1i.3 1.i 1.7 a.2 t.3 1k 1.7 2.2 2.3 9 a.2 q 2.3 1k 1.5 4.2 2.3 3 "
        "u.2 3 b.3 1k 1.8 1.3 1.3 k.2 m.6 1.3 1k 1.7 2.2 2.3 7.3 a.2 u 1n.5 3.3 1.4 9 14.5 1j 1.7 "
        "1.3 1.4 7.2 b.2 t.3 1k 1.7 1.3 1.4 7.2 b.2 f c.4 1j.2 1.7 1.3 1.4 9 a.2 t.3 1y 4.6 1 1.8 "
        "i.2 1p 2.7 c.8 2q 2.9 b.7 21.2 r 1 1 4.2 1d.k 1.2 5.b 1.10 9 2s.k n.4 4.3 1.3 2.7 3.4 d.c "
        "1 a.4 jj.3 qa.4 s.3 t.2 u.2 1s.w 9 19.3 1 39.2 y 3a.c 4.c 63.5 1l.a 1.t 2 1c.v 1d.5 1b.h "
        "12.9 c.3 u.d 1k.e 1c.k 48.3 1.l 4 6 2.3 5i.1s k0.x 2da.3 3x 2o.w fe.6 2x.2 n9w.4 1.a w.2 "
        "28.2 7k 3 4 n.5 4 2b.2 1e.i q.i d 12.8 p.d 18.4 1b.e 10 1v.e c 8.2 19.3 1e 1.3 2.2 5.2 1 "
        "15.5 5.2 6k.8 1.2 fn4 kh.g g.g r1 6a 45.5 1ae.3 1.2 5.4 14.3 4 4l.2 fx.4 ar.2 28.3 1y.b "
        "1d.4 3e.3 1h.f 15 2.2 a.4 19.b 7 1p.3 10.e g.2 18 c.3 1c.e 8.4 1.2 2k.c 6 2 4d.c l.4 1j.2 "
        "1.7 2.2 2.3 9 a.2 2.7 3.5 5c.i n 29.k 6j.7 2.9 r.2 2a.h 2y.d 2t.f 74.f 6t.6 1.2 2.4 1 1.2 "
        "3x.7 2.7 3 s.a 14.7 1.4 8 9.b 1a.g b9.8 1.8 2a.m 1.e 3e.6 3 1.2 1.7 1 1u.5 1.2 1.5 9n.4 "
        "9.2 1 1c.7 3.5 459 6.f asa.5 1n.7 t4 1.1j 7.4 29 b.2 f57.2 3mp.1a 2.n f2.5 3.6 8.8 2.7 u.4 "
        "44.3 1iz.1j 4.1e 8 e m.5 1.f 11s.7 1.h 2.7 1.2 1.5 2s 4g.7 af 1p.4 e4.4 rk.7 31.7 gzhx.6o "
    ),
    "N": (  # numbers
        "1c.a 3c.2 5 2.3 141.a 3q.a 5i.a bg.a 3a.a 4.6 30.a 3a.a 3a.a 2.6 32.d 37.a 8.7 2v.a 2w.7 "
        "7.j 31.a 2o.a 3a.a 1y.k 7g.a 1y.a jz.k oh.3 6n.a 6.a m.a 8c.a 3k.b 4l.a 6.a 52.a 2e.a 3q.a "
        "6.a t2 3.6 6.a 5i.1f 2.5 k6.1o 26.m hi.u 12h ll p.9 e.3 9j.4 3u.a u.8 1.f w.a 13.f msg.a "
        "58.a 8w.6 4a.a 12.a 5i.a m.a 2e.a ba.a geu.a dp.19 c.1l h.2 9h.r 10.4 t 8 3q.5 5m.a q6.8 "
        "p.7 13.9 23.5 m.6 4g.2 2.g 2.1a 1s.9 1g.2 u.3 23.5 2w.8 o.8 15.7 96.6 1c.a 86.v 4e.a 16.4 "
        "34.7 3q.u 3k.a 1o.a 40.a 7.k 6z.a 9i.a 3a.a ae.a 2u.a 2u.c bo.j 2l.a l2.t 6b.a 1y.a bq.a "
        "2u.l tn.33 dtd.a 2e.a 3q.a 1.7 m6.n js9.k c.k 30.p ut.1e 1ts.a bq.a dy.a r1.9 3k.a lz.1n "
        "1.3 1.4 24.19 1.f qq.d 25f.a "
    ),
    "P": (  # punctuation
        "x.3 1.6 1.4 a.2 3.2 q.3 1 r 1 z 5 3 a.2 3 3 ji 8 cy.6 15.2 1f 1 2 2 18.2 k.2 1.2 d 1.3 "
        "22.4 2u 17.e 6h.3 1i.f v 79.2 a 3w 3c 3d au c a7 2i a.2 4o.f 1 11.4 1z 22.5 4.2 33.6 4r "
        "h0.9 47 h9 18.2 26.3 1z.2 4d.3 1.3 11.b 8p.2 60.2 3k.7 1.6 4s.7 s.2 3h.4 1n.5 1q.2 1s.8 b "
        "n0.o 8.k 1.d 1.c u.2 e.2 hl.4 t.2 u5.e 27.2 v.a b7.m 1r.4 w.2 l7.4 1.2 34 3z.1b 1.w 2.c "
        "bn.3 4.a 2.c g c 2q 2i mwy.2 7h.3 2r a 37.6 ak.4 2e.2 14.3 1 1d.2 1b 2p.d g.2 3g.4 3i.2 "
        "g.2 6x g2a.2 5s.a m.z 1.e 1 4 1.2 45.3 1.6 1.4 a.2 3.2 q.3 1 r 1 1.7 be.3 ik 1c bi kn 5j v "
        "7k.9 12 34.7 1u.7 2h.4 ls 4n.5 18.4 59.7 31.2 1.4 3i.4 1c.2 27.4 4 d 1.3 2g.6 2z bl.5 a.2 "
        "1 2w 6y.n 2x.3 s.d 24 3m.3 70 7c.3 4b 2k.8 2b.3 1.5 2l.a 8n.5 16.2 hx.2 22.d 4v vk.5 29o.2 "
        "bjv.2 3p 1t.5 8 nm.4 93 f5o 5wn.5 2xe.2 "
    ),
    "S": (  # symbols
        "10 6 g.3 v 1 r 1 z.5 1.2 2 1.4 2 3 u v cq.4 c.e 5.7 1 1.h 39 e.2 34 3v 7e.3 3a.3 2 2.2 5q "
        "a j.2 6v 7.2 3s a1.2 6.2 6t 3i 3m.8 3o 5r 15 5h 5d.3 f 1.3 2.6 k 1 1 3p.8 1.6 1.2 5.4 5h.2 "
        "kw.a k3 a5 9w 4d.y 9t.a 9.9 u8 1.3 b.3 d.3 d.3 d.2 1x d 13.3 d.3 j.x 1r.2 1.4 1.2 a 1.3 "
        "5.6 1 1 1 4 b.2 4.5 5.4 1 1m.2 4.ag 4.t 2.70 p.b 29.26 m.h4 18.1d 2.v a.b7 m.1r 4.w 2.ae "
        "2.w 1.2x 6d.6 9x.2 1a.q 1.2h c.5y q.g 4 d.2 c l.2 6.2 2j.2 6r.2 4.a w.10 b g.v b.u 8 f.w "
        "a.13 f.8w 534.1s h3k.1j ft.n 9.2 2v.2 4d.4 a.4 fx.3 69 e.2 fr1 3s.h al.g 3j 18.4 2q 1.3 2 "
        "4a 6 g.3 v 1 r 1 3l.7 1.7 d.2 8p.9 1l.h 2.3 1.d 3 1b.19 1a2.2 gf 2gm 1p1.t eve.4 5 g2e "
        "3oz.38 1o.6u a.13 2.1o 5.3 m.2 7.u 4.1p l.1u 3 56.2f oa p v p v p v p v p 1o.e8 1j.4 1e.8 "
        "1.e 1.2 1c8 bz 1ws 3 3h ch.2 7i.18 4.2s c.f 2.f 1.f 1.11 n.4h 1k.t d.18 4.9 7.2 e.6 4a.rc "
        "4.h 3.d 3.3b 4.2n 6.c 4 f.c 4.1k 8.a 6.14 8.u 2.2 26.9g c.e 2.d 3.9 7.1a 1.7 8.e 4.9 7.9 "
        "7.43 1.1j "
    ),
}


@cache
def ranges(category):
    """The code points of a general category.

    Parameters
    ----------
    category : {"L", "M", "N", "P", "S"}

    Returns
    -------
    tuple of (first, last), ascending, both inclusive
    """
    found, end = [], 0
    for run in _RUNS[category].split():
        gap, _, length = run.partition(".")
        start = end + int(gap, 36)
        end = start + (int(length, 36) if length else 1)
        found.append((start, end - 1))
    return tuple(found)
