"""Which mechanism reads from storage best on this machine, from measurements."""

from penstock.io.advice.advice import Advice as Advice
from penstock.io.advice.advice import advise as advise
from penstock.io.advice.advice import choose_reader as choose_reader
from penstock.io.advice.prediction import Requirement as Requirement
