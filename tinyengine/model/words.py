"""The closed word list of the embedded model. Nearly every word here becomes one token of its tokenizer."""

NAMES = """Ada Alma Amy Anna Ben Bob Carl Clara Cleo Dan Dora Ella Emma Eric Eva Felix Finn Flora Frank Fred Gina Greta
Gus Hana Hugo Ida Igor Ines Iris Ivan Jack Jane Jim Joan Joe John Jon Julia June Kai Karl Kate Kim Lara Lea Lena Leo
Lily Lina Lisa Lola Lotte Luca Lucy Luis Luna Mara Mark Mary Max May Mia Mila Mina Nadia Nick Nina Noah Nora Olga Omar
Oscar Otto Pablo Paul Peter Petra Pia Rita Robin Rosa Ruth Sam Sara Sofia Sue Tara Ted Theo Tim Tina Tom Uma Vera Victor
Walter Wendy Will Yara Yuki Zara Zoe""".split()

ANIMALS = """fox owl bear cat dog cow pig hen duck goose horse sheep goat lion tiger wolf mouse rat frog snake bee ant
fish bird crow eagle swan deer moose camel zebra monkey panda koala otter beaver rabbit hare mole bat seal whale shark
crab snail spider turtle lizard donkey parrot penguin dolphin elephant giraffe hamster pony lamb robin""".split()

CAPITALS = dict(pair.split("-") for pair in """France-Paris Germany-Berlin Italy-Rome Spain-Madrid Portugal-Lisbon
Austria-Vienna Greece-Athens Poland-Warsaw Hungary-Budapest Norway-Oslo Sweden-Stockholm Finland-Helsinki
Denmark-Copenhagen Ireland-Dublin England-London Scotland-Edinburgh Belgium-Brussels Netherlands-Amsterdam
Switzerland-Bern Russia-Moscow Ukraine-Kyiv Turkey-Ankara Egypt-Cairo Kenya-Nairobi Ghana-Accra Nigeria-Abuja
Morocco-Rabat Senegal-Dakar Israel-Jerusalem Iraq-Baghdad Iran-Tehran India-Delhi China-Beijing Japan-Tokyo Korea-Seoul
Thailand-Bangkok Vietnam-Hanoi Nepal-Kathmandu Australia-Canberra Canada-Ottawa America-Washington Cuba-Havana
Peru-Lima Chile-Santiago Colombia-Bogota Ecuador-Quito Uruguay-Montevideo Jamaica-Kingston Iceland-Reykjavik
Croatia-Zagreb Serbia-Belgrade Romania-Bucharest Bulgaria-Sofia Latvia-Riga Estonia-Tallinn""".split())

OPPOSITES = dict(pair.split("-") for pair in """hot-cold big-small long-short old-new fast-slow high-low good-bad
happy-sad day-night up-down left-right open-closed light-dark wet-dry full-empty hard-soft rich-poor early-late
near-far loud-quiet yes-no black-white first-last clean-dirty strong-weak young-old thick-thin sweet-sour wide-narrow
summer-winter""".split())

COLORS = dict(pair.split("-") for pair in """sky-blue sea-blue grass-green leaf-green snow-white milk-white
sun-yellow lemon-yellow banana-yellow tomato-red cherry-red blood-red coal-black crow-black night-black
carrot-orange chocolate-brown bread-brown elephant-gray mouse-gray plum-purple flamingo-pink""".split())

SOUNDS = dict(pair.split("-") for pair in """cow-moo dog-woof cat-meow duck-quack sheep-baa pig-oink lion-roar bee-buzz
owl-hoot snake-hiss frog-croak bird-tweet horse-neigh mouse-squeak wolf-howl""".split())

HOMES = dict(pair.split("-") for pair in """fox-forest owl-forest bear-forest deer-forest wolf-forest cow-farm pig-farm
hen-farm sheep-farm goat-farm horse-farm fish-sea whale-sea shark-sea crab-sea dolphin-sea seal-sea lion-desert
camel-desert duck-lake swan-lake frog-lake otter-river beaver-river cat-house dog-house hamster-house eagle-mountain
penguin-snow panda-forest""".split())

# Word -> the one after it.
NEXT = {word: after for chain in (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Monday",
    "January February March April May June July August September October November December January",
    "one two three four five six seven eight nine ten",
    "spring summer autumn winter spring",
) for word, after in zip(chain.split(), chain.split()[1:])}

FOODS = "apples bread cake cheese honey nuts rice soup plums cherries".split()
PLACES = "forest farm sea desert lake river house mountain garden park school market beach hill bridge town".split()
THINGS = "ball book box hat key lamp ring boat bell coin cup drum flower kite map stone shell star".split()
MOODS = "happy sad tired brave funny quiet clever kind busy proud hungry sleepy".split()
VERBS = "finds sees likes wants hides takes paints washes carries counts".split()
TIMES = "morning evening night day week year".split()

# Words that no template needs. They fill the vocabulary up, serve as keys and values of long look-up lists, and keep a
# newcomer's own words from falling apart into bytes.
EXTRA = """about again all also and arm away bag before behind better body bottle boy bus buy came car chair city
clock cloud come corn could dance dinner door drink ear earth egg every eye fall farmer father fence fire floor food
friend from gave girl give go got grow hair hear help here him hole hope how if island it jump keep king knew land
learn leg letter line live look lot lunch made man meat meet mind moon more mouth much music my neck nest next nose
note off often on or other out own page part path people piano picture place plant plate please pot pull put question
rain read rest road roof root rope said sand saw seed sell set she ship shoe show sister skin sleep so some son soon
stand start step store storm street swim table take tall tea teeth tent their then there they think this today toy
tree truck turn us valley voice wait wall warm was water way we went wheel when which who why window wish with wood
work world write your zoo
""".split()
