"""Write `examples/recorded/smollm2/questions.jsonl`: short facts that a small chat model knows in part.

Every question has one answer that can be checked, and no reference stands in its question. The facts are the tables
below; nothing was chosen or left out after the model had been asked. The order is a shuffle with seed 0.

    .venv/bin/python scripts/smollm2_questions.py
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "examples" / "recorded" / "smollm2" / "questions.jsonl"

SUMS = """
16+9 13+3 19+4 20+16 14+13 11+14 5+10 5+17 17+10 12+18 3+17 12+12 18+9 9+14 9+19 15+20 5+20 2+12 20+17 3+10 3+20 10+11
19+10 7+14 15+17 4+6 14+19 17+7 2+20 7+18 8+18 11+5 14+16 8+14 2+18 3+5 16+11 18+20 2+19 11+6 17+13 20+20 12+19 6+19
6+4 15+16 11+8 13+6 4+9 15+18 14+5 8+12 10+6 10+5 12+3 9+11 13+5 14+10 10+10 10+2 18+16 17+16 12+11 12+2 17+2 16+16
7+12 8+8 8+5 4+16 3+4 8+15 18+17 10+3 20+15 15+8 6+10 7+13 2+8 20+18 18+12 14+4 11+18 12+13 15+13 19+15 6+2 14+3 17+15
10+18 20+8 5+15 16+18 2+13 15+12 7+11 4+13 10+12 12+7 17+9 8+17 5+11 8+3 7+6 16+6 8+16 16+17 14+8 20+4 10+14 8+7 6+7
2+9 20+10 6+11 18+4 11+15 19+8 12+9 3+19 18+2 12+20 19+14 16+7 6+18 4+12 20+3 19+6 7+2 11+9 15+9 13+11 18+19 6+5 5+12
4+17 12+5 8+6 5+6 4+18 2+6 16+8 20+13 10+20 19+17 5+18 4+4 10+4 17+20 6+16 83+82 36+82 79+44 59+32 61+54 82+55 82+72
80+64 25+57 31+18 64+32 88+39 74+25 29+80 54+34 34+56 33+59 56+44 40+82 55+46 74+56 84+29 74+46 80+75 65+37 54+64
30+75 46+88 23+62 41+43 51+49 76+78 27+13 30+61 49+69 43+74 66+75 85+47 82+12 74+35 32+66 33+63 62+18 66+80 89+55
43+30 83+38 50+79 23+35 51+73 64+80 79+24 81+17 35+43 40+64 81+61 49+65 37+89 67+62 78+46 36+51 87+58 49+14 58+33
82+80 44+65 72+76 47+75 59+27 53+20 46+58 55+38 89+85 62+86 85+81 88+82 84+61 63+63 53+56 47+43 24+64 49+19 47+38
62+36 86+60 30+49 39+89 45+20 33+53 38+53 37+46 65+44 30+76 62+82 31+64 87+37 42+11 76+48 43+77 68+44 8x14 5x7 4x12
2x2 2x8 11x7 11x5 11x13 4x14 10x10 8x6 9x15 7x11 5x4 2x5 12x3 7x15 12x13 6x10 3x14 10x13 9x7 8x12 12x15 5x14 11x15 6x7
3x4 6x5 11x10 10x8 5x15 8x13 10x12 9x14 3x3 2x14 5x9 10x15 11x9 8x2 3x13 9x6 7x13 4x15 3x15 7x14 5x3 6x13 10x3 6x15
8x4 10x4 4x13 7x4 5x6 10x14 8x11 11x14 4x5 6x14 12x4 9x13 2x4 7x9 2x13 9x12 8x15 12x14 2x15 5x13 7x8 4x9 8x3 30/10 8/2
39/3 22/11 72/4 114/6 168/12 180/10 80/4 90/9 95/5 52/4 144/9 65/5 76/4 153/9 190/10 117/9 51/3 105/7 104/8 48/8
204/12 140/7 15/3 98/7 72/6 209/11 34/2 102/6 12/3 192/12 170/10 36/6 68/4 54/6 80/5 56/4 187/11 85/5 49/7 28/7 91/7
126/7 72/12 180/12 40/2 42/3 32/4 16/8 12/4 6/2 160/10 135/9 84/6 90/6 20/4 6/3 112/7 165/11 120/6 75/5 48/3 22/2 60/3
10/5 45/5 112/8 216/12 220/11 33/3 176/11 36/2 96/12 90/5 26/2 38/2 100/5 70/5 108/6 27/9 133/7 119/7 198/11 88/11
143/11 200/10 30/2 64/4 140/10
"""
"""Each is `a+b`, `axb` or `a/b`."""

TWICE = [*range(3, 60, 2), 64, 70, 75, 80, 100, 150]
HALF = [*range(8, 84, 4), 90, 100, 110, 120, 150, 180, 200, 500]
NUMBERS = [
    11,
    13,
    15,
    17,
    18,
    21,
    24,
    27,
    29,
    32,
    35,
    38,
    43,
    46,
    49,
    51,
    54,
    57,
    62,
    66,
    68,
    73,
    77,
    79,
    85,
    88,
    91,
    99,
]

# The part before "=" stands in the question; references are separated by "|".
TABLES = {
    ("plural", "What is the plural of the word {}?"): """
leaflet=leaflets; horse=horses; mango=mangoes|mangos; hoof=hooves|hoofs; lens=lenses; virus=viruses; wish=wishes;
kitten=kittens; pony=ponies; puppy=puppies; butterfly=butterflies; strawberry=strawberries; library=libraries;
factory=factories; diary=diaries; cherub=cherubs|cherubim; window=windows; garden=gardens; teacher=teachers;
student=students; doctor=doctors; bottle=bottles; lamp=lamps; phone=phones; school=schools; street=streets;
bridge=bridges; flower=flowers; mountain=mountains; ocean=oceans; island=islands; farmer=farmers; ship=ships;
letter=letters; number=numbers; color=colors; shoe=shoes; coat=coats; hat=hats; shirt=shirts; finger=fingers;
hand=hands; arm=arms; eye=eyes; ear=ears; nose=noses; mouth=mouths; elephant=elephants; tiger=tigers; lion=lions;
bear=bears; rabbit=rabbits; snake=snakes; frog=frogs; duck=ducks; eagle=eagles; turkey=turkeys; donkey=donkeys;
valley=valleys; chimney=chimneys; journey=journeys; boss=bosses; actress=actresses; princess=princesses;
mattress=mattresses; address=addresses; business=businesses; gas=gases; lunch=lunches; inch=inches; branch=branches;
coach=coaches; beach=beaches; torch=torches; ditch=ditches; crash=crashes; radish=radishes; suffix=suffixes;
reflex=reflexes; mailbox=mailboxes; hedge=hedges; prize=prizes; self=selves; sheaf=sheaves; housewife=housewives;
midwife=midwives; bookshelf=bookshelves; werewolf=werewolves; policeman=policemen; fireman=firemen; snowman=snowmen;
grandchild=grandchildren; stepchild=stepchildren; alumnus=alumni; radius=radii|radiuses; synopsis=synopses;
thesis=theses; diagnosis=diagnoses; emphasis=emphases; parenthesis=parentheses; ellipse=ellipses; larva=larvae;
vertebra=vertebrae; alga=algae; cuckoo=cuckoos; kangaroo=kangaroos; radio=radios; studio=studios; video=videos;
tornado=tornadoes|tornados; torpedo=torpedoes; mosquito=mosquitoes|mosquitos; cliff=cliffs; cuff=cuffs;
giraffe=giraffes; belief=beliefs; century=centuries; colony=colonies; daisy=daisies; fairy=fairies; jury=juries;
lily=lilies; melody=melodies; penalty=penalties; ruby=rubies; salary=salaries; victory=victories; witch=witches;
zebra=zebras
""",
    ("opposite", "What is the opposite of the word {}?"): """
new=old; far=near|close; young=old; thin=thick|fat; fat=thin|slim; low=high; down=up; dark=light|bright; dry=wet;
cold=hot|warm; slow=fast|quick; soft=hard|loud; small=big|large; little=big|large|much; short=long|tall;
poor=rich|wealthy; bad=good; wrong=right|correct; false=true; dirty=clean; empty=full; outside=inside; out=in; off=on;
over=under; below=above; right=left|wrong; west=east; south=north; evening=morning; winter=summer; night=day;
death=life|birth; birth=death; female=male; bottom=top; minimum=maximum; last=first; end=start|beginning;
finish=start|begin; close=open|far; shut=open; pull=push; sell=buy; give=take|receive; receive=send|give;
lose=win|find; fail=succeed|pass; hate=love; enemy=friend; peace=war; sad=happy; healthy=sick|ill|unhealthy;
weak=strong; loose=tight; narrow=wide|broad; shallow=deep; rough=smooth; blunt=sharp; dull=sharp|bright|shiny;
dangerous=safe; cruel=kind; rude=polite; foolish=wise; stupid=smart|clever|intelligent;
lazy=hardworking|diligent|industrious|active; coward=hero; proud=humble|ashamed; innocent=guilty; sour=sweet;
bitter=sweet; quiet=loud|noisy; simple=complex|complicated|difficult; difficult=easy|simple; easy=hard|difficult;
late=early; never=always; nobody=everybody|somebody|everyone|someone; nothing=everything|something; absent=present;
minority=majority; minor=major; export=import; exit=entrance|enter|entry; forget=remember; shrink=grow|expand|stretch;
decrease=increase; subtract=add; multiply=divide; descend=ascend|climb; defend=attack; reject=accept|approve;
deny=admit|confirm|affirm|accept; borrow=lend; punish=reward; failure=success; defeat=victory|win;
loss=gain|profit|win; pessimist=optimist; horizontal=vertical; temporary=permanent; negative=positive; plus=minus;
interior=exterior; internal=external; maternal=paternal; rural=urban; modern=ancient|old; dead=alive|living;
asleep=awake; single=married|double; sunrise=sunset; sunset=sunrise; sink=float|rise|swim
""",
    ("comparative", "What is the comparative form of the adjective {}?"): """
tall=taller; short=shorter; small=smaller; big=bigger; fast=faster; slow=slower; old=older|elder; young=younger;
hot=hotter; cold=colder; warm=warmer; cheap=cheaper; happy=happier; easy=easier; early=earlier; funny=funnier;
heavy=heavier; good=better; bad=worse; far=farther|further; strong=stronger; weak=weaker; thick=thicker; thin=thinner;
wide=wider; large=larger; nice=nicer; brave=braver; wet=wetter; sad=sadder; dirty=dirtier; busy=busier; lucky=luckier;
dark=darker; light=lighter; deep=deeper; rich=richer; poor=poorer; clean=cleaner; loud=louder
""",
    ("baby", "What is a baby {} called?"): """
cow=calf; horse=foal; sheep=lamb; cat=kitten; dog=puppy|pup; pig=piglet; goat=kid; deer=fawn; bear=cub; lion=cub;
duck=duckling; goose=gosling; swan=cygnet; chicken=chick; frog=tadpole; kangaroo=joey; elephant=calf; whale=calf;
wolf=pup; seal=pup; fox=cub|kit|pup; tiger=cub; eagle=eaglet; owl=owlet; turkey=poult|chick; rabbit=kit|bunny|kitten;
butterfly=caterpillar|larva; hen=chick; fish=fry
""",
    ("capital", "What is the capital of {}?"): """
Ireland=Dublin; Norway=Oslo; Finland=Helsinki; Denmark=Copenhagen; Iceland=Reykjavik|Reykjavík; the
Netherlands=Amsterdam; Croatia=Zagreb; Slovenia=Ljubljana; Slovakia=Bratislava; Albania=Tirana; North
Macedonia=Skopje; Montenegro=Podgorica; Bosnia and Herzegovina=Sarajevo; Estonia=Tallinn; Latvia=Riga;
Lithuania=Vilnius; Moldova=Chisinau|Chișinău; Malta=Valletta; Cyprus=Nicosia; Liechtenstein=Vaduz; Georgia, the
country=Tbilisi; Armenia=Yerevan; Kazakhstan=Astana; Turkmenistan=Ashgabat; Mongolia=Ulaanbaatar|Ulan Bator; New
Zealand=Wellington; Fiji=Suva; Samoa=Apia; Tonga=Nuku'alofa|Nukualofa; Vanuatu=Port Vila; the Solomon Islands=Honiara;
Malaysia=Kuala Lumpur; Bhutan=Thimphu; the Maldives=Male|Malé; Qatar=Doha; Oman=Muscat; Yemen=Sanaa|Sana'a;
Bahrain=Manama; Uruguay=Montevideo; Chile=Santiago; Guyana=Georgetown; Suriname=Paramaribo; Costa Rica=San Jose|San
José; Belize=Belmopan; Jamaica=Kingston; the Bahamas=Nassau; Barbados=Bridgetown; Trinidad and Tobago=Port of Spain;
Grenada=St. George's|Saint George's; Saint Lucia=Castries; Namibia=Windhoek; Botswana=Gaborone; Lesotho=Maseru;
Gabon=Libreville; Mauritania=Nouakchott; Liberia=Monrovia; Gambia=Banjul; Cape Verde=Praia; Mauritius=Port Louis;
Seychelles=Victoria; Comoros=Moroni; South Sudan=Juba; Burundi=Gitega|Bujumbura; Tanzania=Dodoma; Central African
Republic=Bangui; Equatorial Guinea=Malabo|Ciudad de la Paz; Republic of the Congo=Brazzaville; Scotland=Edinburgh;
Wales=Cardiff; Northern Ireland=Belfast; Greenland=Nuuk; Bermuda=Hamilton; Taiwan=Taipei; Brunei=Bandar Seri Begawan;
East Timor=Dili; Palau=Ngerulmud; Tuvalu=Funafuti
""",
    ("country of capital", "Which country has the capital {}?"): """
Dublin=Ireland; Oslo=Norway; Helsinki=Finland; Copenhagen=Denmark; Reykjavik=Iceland; Amsterdam=Netherlands|Holland;
Zagreb=Croatia; Ljubljana=Slovenia; Bratislava=Slovakia; Tirana=Albania; Skopje=Macedonia; Podgorica=Montenegro;
Sarajevo=Bosnia; Tallinn=Estonia; Riga=Latvia; Vilnius=Lithuania; Chisinau=Moldova; Valletta=Malta; Nicosia=Cyprus;
Vaduz=Liechtenstein; Tbilisi=Georgia; Yerevan=Armenia; Astana=Kazakhstan; Ashgabat=Turkmenistan; Ulaanbaatar=Mongolia;
Wellington=New Zealand; Suva=Fiji; Apia=Samoa; Honiara=Solomon Islands; Kuala Lumpur=Malaysia; Thimphu=Bhutan;
Doha=Qatar; Muscat=Oman; Sanaa=Yemen; Manama=Bahrain; Montevideo=Uruguay; Santiago=Chile; Georgetown=Guyana;
Paramaribo=Suriname; Belmopan=Belize; Kingston=Jamaica; Nassau=Bahamas; Bridgetown=Barbados; Port of Spain=Trinidad;
Castries=Saint Lucia|St. Lucia; Windhoek=Namibia; Gaborone=Botswana; Maseru=Lesotho; Libreville=Gabon;
Nouakchott=Mauritania; Monrovia=Liberia; Banjul=Gambia; Praia=Cape Verde|Cabo Verde; Port Louis=Mauritius;
Moroni=Comoros; Juba=South Sudan; Dodoma=Tanzania; Bangui=Central African Republic; Malabo=Equatorial Guinea;
Brazzaville=Congo; Taipei=Taiwan; Colombo=Sri Lanka; Naypyidaw=Myanmar|Burma; Bujumbura=Burundi; Pretoria=South
Africa; Mbabane=Eswatini|Swaziland; Dili=Timor
""",
    ("continent", "On which continent is {}?"): """
Ireland=Europe; Norway=Europe; Finland=Europe; Denmark=Europe; Iceland=Europe; the Netherlands=Europe; Croatia=Europe;
Slovenia=Europe; Slovakia=Europe; Albania=Europe; Montenegro=Europe; Estonia=Europe; Latvia=Europe; Lithuania=Europe;
Moldova=Europe; Malta=Europe; Luxembourg=Europe; Monaco=Europe; Andorra=Europe; San Marino=Europe; Mongolia=Asia;
Malaysia=Asia; Singapore=Asia; Bhutan=Asia; Sri Lanka=Asia; Myanmar=Asia; Taiwan=Asia; Qatar=Asia; Oman=Asia;
Yemen=Asia; Bahrain=Asia; Kuwait=Asia; Israel=Asia; Turkmenistan=Asia; the Maldives=Asia; Brunei=Asia; Uruguay=South
America; Chile=South America; Bolivia=South America; Guyana=South America; Suriname=South America; Costa Rica=North
America|Central America; Panama=North America|Central America; Belize=North America|Central America; Jamaica=North
America|Caribbean; the Bahamas=North America|Caribbean; Barbados=North America|Caribbean; Greenland=North America;
Namibia=Africa; Botswana=Africa; Lesotho=Africa; Gabon=Africa; Mauritania=Africa; Liberia=Africa; Gambia=Africa;
Benin=Africa; Djibouti=Africa; Burundi=Africa; Tanzania=Africa; South Sudan=Africa; New Zealand=Oceania|Australia;
Fiji=Oceania|Australia; Samoa=Oceania|Australia; Tonga=Oceania|Australia; the Sahara desert=Africa; the Gobi
desert=Asia; the Amazon rainforest=South America; the Nile river=Africa; the Danube river=Europe; the Mississippi
river=North America; the Ganges river=Asia; the Congo river=Africa; the Rhine river=Europe; Mount Everest=Asia; Mont
Blanc=Europe; Mount Kenya=Africa; Denali=North America; Aconcagua=South America; Lake Victoria=Africa; Lake
Baikal=Asia; Lake Titicaca=South America; Lake Superior=North America; the Grand Canyon=North America; the Victoria
Falls=Africa; the Alps=Europe; the Himalayas=Asia; the Andes=South America; the Rocky Mountains=North America; the
Pyrenees=Europe; the Atlas Mountains=Africa
""",
    ("currency", "What is the name of the currency of {}?"): """
Japan=yen; Norway=krone|kroner; Denmark=krone|kroner; Iceland=krona|króna; Hungary=forint; Bulgaria=lev|euro;
Finland=euro; Ireland=euro; Greece=euro; the Netherlands=euro; Slovakia=euro; Slovenia=euro; Estonia=euro;
Albania=lek; North Macedonia=denar; Moldova=leu; Armenia=dram; Kazakhstan=tenge; Mongolia=tugrik|tögrög|togrog;
Malaysia=ringgit; Nepal=rupee; Sri Lanka=rupee; Bhutan=ngultrum; the Maldives=rufiyaa; Myanmar=kyat; Qatar=riyal|rial;
Oman=rial|riyal; Yemen=rial|riyal; Bahrain=dinar; Kuwait=dinar; Israel=shekel; Tunisia=dinar; Algeria=dinar; South
Africa=rand; Namibia=dollar; Botswana=pula; Lesotho=loti; Malawi=kwacha; Kenya=shilling; Tanzania=shilling;
Gambia=dalasi; Senegal=franc; Gabon=franc; Liberia=dollar; Mauritius=rupee; Argentina=peso; Chile=peso; Uruguay=peso;
Bolivia=boliviano; Cuba=peso; Costa Rica=colon|colón; Panama=balboa|dollar; Jamaica=dollar; the Bahamas=dollar;
Barbados=dollar; New Zealand=dollar; Fiji=dollar; Singapore=dollar; Taiwan=dollar; Samoa=tala; Haiti=gourde;
Turkmenistan=manat; Malta=euro; Cyprus=euro; Latvia=euro; Lithuania=euro; Croatia=euro
""",
    ("language", "Which language do most people in {} speak?"): """
France=French; Spain=Spanish; Germany=German; Italy=Italian; Portugal=Portuguese; Poland=Polish; Sweden=Swedish;
Norway=Norwegian; Denmark=Danish; Finland=Finnish; Greece=Greek; Turkey=Turkish; Russia=Russian; Hungary=Hungarian;
Romania=Romanian; Bulgaria=Bulgarian; Japan=Japanese; China=Chinese|Mandarin; Vietnam=Vietnamese; Thailand=Thai; Saudi
Arabia=Arabic; Iraq=Arabic; Morocco=Arabic; Libya=Arabic; Yemen=Arabic; Syria=Arabic; Chile=Spanish; Peru=Spanish;
Colombia=Spanish; Venezuela=Spanish; Cuba=Spanish; Uruguay=Spanish; Guatemala=Spanish; Israel=Hebrew;
Iceland=Icelandic; Australia=English; Ireland=English; Jamaica=English; the United Kingdom=English; the
Netherlands=Dutch; Angola=Portuguese; Mozambique=Portuguese; Bangladesh=Bengali|Bangla; South Korea=Korean;
Ukraine=Ukrainian; Albania=Albanian; Armenia=Armenian; Cambodia=Khmer; Mongolia=Mongolian; Laos=Lao; Serbia=Serbian;
Croatia=Croatian; Slovakia=Slovak; Lithuania=Lithuanian; Estonia=Estonian
""",
    ("symbol", "What is the chemical symbol of {}?"): """
scandium=Sc; vanadium=V; gallium=Ga; germanium=Ge; rubidium=Rb; strontium=Sr; yttrium=Y; zirconium=Zr; niobium=Nb;
molybdenum=Mo; ruthenium=Ru; rhodium=Rh; palladium=Pd; indium=In; antimony=Sb; tellurium=Te; cesium=Cs; lanthanum=La;
cerium=Ce; neodymium=Nd; europium=Eu; hafnium=Hf; tantalum=Ta; rhenium=Re; osmium=Os; iridium=Ir; thallium=Tl;
bismuth=Bi; polonium=Po; astatine=At; francium=Fr; actinium=Ac; thorium=Th; plutonium=Pu; americium=Am; curium=Cm;
einsteinium=Es; fermium=Fm
""",
    ("element", "Which chemical element has the symbol {}?"): """
Sc=scandium; V=vanadium; Ga=gallium; Ge=germanium; Rb=rubidium; Sr=strontium; Y=yttrium; Zr=zirconium; Nb=niobium;
Mo=molybdenum; Ru=ruthenium; Rh=rhodium; Pd=palladium; In=indium; Sb=antimony; Te=tellurium; Cs=cesium|caesium;
La=lanthanum; Ce=cerium; Nd=neodymium; Eu=europium; Hf=hafnium; Ta=tantalum; Re=rhenium; Os=osmium; Ir=iridium;
Tl=thallium; Bi=bismuth; Po=polonium; At=astatine; Fr=francium; Ac=actinium; Th=thorium; Pu=plutonium; Am=americium;
Cm=curium; Es=einsteinium; Fm=fermium
""",
    ("us code", "Which US state has the postal code {}?"): """
TX=Texas; NY=New York; FL=Florida; OH=Ohio; GA=Georgia; MI=Michigan; NJ=New Jersey; AZ=Arizona; TN=Tennessee;
IN=Indiana; SC=South Carolina; AL=Alabama; OR=Oregon; CT=Connecticut; UT=Utah; IA=Iowa; AR=Arkansas; NM=New Mexico;
HI=Hawaii; RI=Rhode Island
""",
    ("us city", "In which US state is the city of {}?"): """
Los Angeles=California; San Francisco=California; San Diego=California; Houston=Texas; Dallas=Texas; San
Antonio=Texas; El Paso=Texas; Fort Worth=Texas; Chicago=Illinois; Philadelphia=Pennsylvania; Pittsburgh=Pennsylvania;
Tucson=Arizona; Mesa=Arizona; Seattle=Washington; Spokane=Washington; Tacoma=Washington; Detroit=Michigan;
Miami=Florida; Tampa=Florida; Orlando=Florida; Jacksonville=Florida; New Orleans=Louisiana; Shreveport=Louisiana;
Baltimore=Maryland; Milwaukee=Wisconsin; Las Vegas=Nevada; Reno=Nevada; Louisville=Kentucky; Lexington=Kentucky;
Memphis=Tennessee; Knoxville=Tennessee; Chattanooga=Tennessee; Charlotte=North Carolina; Durham=North Carolina;
Greensboro=North Carolina; Cleveland=Ohio; Cincinnati=Ohio; Toledo=Ohio; Akron=Ohio; Buffalo=New York; Rochester=New
York; Syracuse=New York; Newark=New Jersey; Jersey City=New Jersey; Virginia Beach=Virginia; Norfolk=Virginia;
Tulsa=Oklahoma; Wichita=Kansas; Omaha=Nebraska; Minneapolis=Minnesota; Duluth=Minnesota; St. Louis=Missouri; Kansas
City=Missouri|Kansas; Anchorage=Alaska; Fairbanks=Alaska; Birmingham=Alabama; Mobile=Alabama; Huntsville=Alabama;
Savannah=Georgia; Albuquerque=New Mexico; Colorado Springs=Colorado; Fort Wayne=Indiana; Eugene=Oregon;
Portland=Oregon|Maine; Worcester=Massachusetts; New Haven=Connecticut; Bridgeport=Connecticut; Billings=Montana;
Fargo=North Dakota; Sioux Falls=South Dakota; Myrtle Beach=South Carolina; Provo=Utah; Biloxi=Mississippi; Cedar
Rapids=Iowa; Oakland=California; Fresno=California; Long Beach=California; Bakersfield=California; Anaheim=California;
Corpus Christi=Texas; Lubbock=Texas; Fort Lauderdale=Florida; Green Bay=Wisconsin
""",
    ("city", "In which country is the city of {}?"): """
Marseille=France; Lyon=France; Bordeaux=France; Nice=France; Toulouse=France; Strasbourg=France; Frankfurt=Germany;
Cologne=Germany; Stuttgart=Germany; Dresden=Germany; Leipzig=Germany; Milan=Italy; Naples=Italy; Turin=Italy;
Venice=Italy; Florence=Italy; Palermo=Italy; Genoa=Italy; Barcelona=Spain; Valencia=Spain; Seville=Spain;
Bilbao=Spain; Granada=Spain; Porto=Portugal; Braga=Portugal; Manchester=England|United Kingdom|UK|Britain;
Liverpool=England|United Kingdom|UK|Britain; Leeds=England|United Kingdom|UK|Britain; Bristol=England|United
Kingdom|UK|Britain; Glasgow=Scotland|United Kingdom|UK|Britain; Edinburgh=Scotland|United Kingdom|UK|Britain;
Cork=Ireland; Galway=Ireland; Rotterdam=Netherlands; Utrecht=Netherlands; Antwerp=Belgium; Ghent=Belgium;
Bruges=Belgium; Zurich=Switzerland; Geneva=Switzerland; Basel=Switzerland; Salzburg=Austria; Graz=Austria;
Innsbruck=Austria; Krakow=Poland; Gdansk=Poland; Lodz=Poland; Wroclaw=Poland; Brno=Czech|Czechia; Debrecen=Hungary;
Split=Croatia; Dubrovnik=Croatia; Varna=Bulgaria; Thessaloniki=Greece; Patras=Greece; Gothenburg=Sweden; Malmo=Sweden;
Bergen=Norway; Trondheim=Norway; Aarhus=Denmark; Odense=Denmark; Tampere=Finland; Turku=Finland; Odesa=Ukraine;
Lviv=Ukraine; Kharkiv=Ukraine; Kazan=Russia; Vladivostok=Russia; Omsk=Russia; Samara=Russia; Antalya=Turkey;
Konya=Turkey; Haifa=Israel; Tel Aviv=Israel; Basra=Iraq; Shiraz=Iran; Isfahan=Iran; Tabriz=Iran; Medina=Saudi Arabia;
Jeddah=Saudi Arabia; Kandahar=Afghanistan; Herat=Afghanistan; Mumbai=India; Hyderabad=India|Pakistan; Pune=India;
Varanasi=India; Agra=India; Bhopal=India; Kyoto=Japan; Kobe=Japan; Hiroshima=Japan; Nagasaki=Japan; Sendai=Japan;
Gwangju=South Korea|Korea; Daejeon=South Korea|Korea; Xi'an=China; Harbin=China; Dalian=China; Suzhou=China; Da
Nang=Vietnam; Hue=Vietnam; Chiang Mai=Thailand; Pattaya=Thailand; Cebu=Philippines; Mandalay=Myanmar|Burma;
Penang=Malaysia; Johor Bahru=Malaysia; Denpasar=Indonesia; Adelaide=Australia; Darwin=Australia; Hobart=Australia;
Cairns=Australia; Auckland=New Zealand; Christchurch=New Zealand; Dunedin=New Zealand; Vancouver=Canada;
Calgary=Canada; Edmonton=Canada; Winnipeg=Canada; Halifax=Canada; Boston=United States|USA|US|America; Seattle=United
States|USA|US|America; Denver=United States|USA|US|America; Miami=United States|USA|US|America; Guadalajara=Mexico;
Monterrey=Mexico; Cancun=Mexico; Acapulco=Mexico; Cartagena=Colombia|Spain; Barranquilla=Colombia; Arequipa=Peru;
Cusco=Peru; Valparaiso=Chile; Cordoba=Argentina|Spain; Rosario=Argentina; Mendoza=Argentina; Santos=Brazil; Porto
Alegre=Brazil; Cape Town=South Africa; Durban=South Africa; Johannesburg=South Africa; Soweto=South Africa;
Mombasa=Kenya; Kisumu=Kenya; Zanzibar=Tanzania; Arusha=Tanzania; Bulawayo=Zimbabwe; Tangier=Morocco;
Marrakesh=Morocco; Fez=Morocco; Oran=Algeria; Luxor=Egypt; Aswan=Egypt; Benghazi=Libya
""",
    ("author", "Who wrote {}?"): """
Othello=Shakespeare; King Lear=Shakespeare; A Midsummer Night's Dream=Shakespeare; The Merchant of Venice=Shakespeare;
Julius Caesar=Shakespeare; The Iliad=Homer; The Aeneid=Virgil; Candide=Voltaire; Madame Bovary=Flaubert; The Hunchback
of Notre-Dame=Hugo; The Count of Monte Cristo=Dumas; Twenty Thousand Leagues Under the Seas=Verne; Around the World in
Eighty Days=Verne; The War of the Worlds=Wells; The Invisible Man=Wells|Ellison; David Copperfield=Dickens; A
Christmas Carol=Dickens; Bleak House=Dickens; Sense and Sensibility=Austen; Mansfield Park=Austen; Persuasion=Austen;
Middlemarch=Eliot; Silas Marner=Eliot; Vanity Fair=Thackeray; Tess of the d'Urbervilles=Hardy; Heart of
Darkness=Conrad; Lord Jim=Conrad; Kim=Kipling; The Adventures of Tom Sawyer=Twain; Walden=Thoreau; Leaves of
Grass=Whitman; Uncle Tom's Cabin=Stowe; The Call of the Wild=London; White Fang=London; The Sun Also Rises=Hemingway;
For Whom the Bell Tolls=Hemingway; A Farewell to Arms=Hemingway; Of Mice and Men=Steinbeck; East of Eden=Steinbeck;
The Sound and the Fury=Faulkner; Catch-22=Heller; Slaughterhouse-Five=Vonnegut; Fahrenheit 451=Bradbury; On the
Road=Kerouac; Beloved=Morrison; The Color Purple=Walker; The Bell Jar=Plath; Death of a Salesman=Miller; The
Crucible=Miller; A Streetcar Named Desire=Williams; Waiting for Godot=Beckett; Pygmalion=Shaw; The Importance of Being
Earnest=Wilde; Dubliners=Joyce; Mrs Dalloway=Woolf; To the Lighthouse=Woolf; The Waste Land=Eliot; The Brothers
Karamazov=Dostoevsky|Dostoyevsky; The Idiot=Dostoevsky|Dostoyevsky; The Cherry Orchard=Chekhov; Doctor
Zhivago=Pasternak; Dead Souls=Gogol; One Hundred Years of Solitude=Márquez|Marquez; The Name of the Rose=Eco; The
Plague=Camus; Nausea=Sartre; The Tin Drum=Grass; The Magic Mountain=Mann; Siddhartha=Hesse; Steppenwolf=Hesse; All
Quiet on the Western Front=Remarque; The Shining=King; Carrie=King; The Da Vinci Code=Brown; The Hunger Games=Collins;
Twilight=Meyer; Charlotte's Web=White; Matilda=Dahl; Charlie and the Chocolate Factory=Dahl; Winnie-the-Pooh=Milne;
The Cat in the Hat=Seuss|Geisel; Black Beauty=Sewell; Heidi=Spyri; Pinocchio=Collodi; The Handmaid's Tale=Atwood; Life
of Pi=Martel; Things Fall Apart=Achebe; The Wealth of Nations=Smith; The Prince=Machiavelli; Utopia=More;
Leviathan=Hobbes; The Art of War=Sun Tzu|Sun Zi; Murder on the Orient Express=Christie; A Study in Scarlet=Doyle; The
Hound of the Baskervilles=Doyle; Neuromancer=Gibson; A Clockwork Orange=Burgess; A Doll's House=Ibsen
""",
    ("who", "Who {}?"): """
painted The Birth of Venus=Botticelli; painted The Kiss=Klimt; painted Water Lilies=Monet; painted The Persistence of
Memory=Dalí|Dali; painted Las Meninas=Velázquez|Velazquez; painted Sunflowers=Gogh; painted American Gothic=Wood;
painted Nighthawks=Hopper; painted The School of Athens=Raphael; carved the statue The Thinker=Rodin; carved the
marble statue of David in Florence=Michelangelo; composed The Nutcracker=Tchaikovsky; composed The Marriage of
Figaro=Mozart; composed Don Giovanni=Mozart; composed the Brandenburg Concertos=Bach; composed the Ode to Joy
symphony=Beethoven; composed the opera Carmen=Bizet; composed the opera Aida=Verdi; composed the opera La
Traviata=Verdi; composed the opera Tosca=Puccini; composed Rhapsody in Blue=Gershwin; composed Boléro=Ravel; composed
The Rite of Spring=Stravinsky; composed the Blue Danube waltz=Strauss; composed the Ring of the Nibelung=Wagner;
discovered the electron=Thomson; discovered X-rays=Röntgen|Roentgen|Rontgen; discovered the neutron=Chadwick;
discovered the moons of Jupiter with a telescope=Galileo|Galilei; discovered the planet Uranus=Herschel; discovered
the circulation of the blood=Harvey; discovered the structure of DNA with Francis Crick=Watson; made the periodic
table of the elements=Mendeleev|Mendeleyev; invented the steam engine with a separate condenser=Watt; invented the
cotton gin=Whitney; invented the airplane=Wright; invented the radio=Marconi; invented the phonograph=Edison; invented
the lightning rod=Franklin; invented the diesel engine=Diesel; invented a writing system for blind people=Braille;
invented the mercury thermometer=Fahrenheit; founded Tesla with Marc Tarpenning=Eberhard; founded the Ford Motor
Company=Ford; founded Google with Sergey Brin=Page; founded Virgin Records=Branson; founded the Mongol Empire=Genghis;
founded psychoanalysis=Freud; was the first woman in space=Tereshkova; was the second person to walk on the
Moon=Aldrin; was the first to reach the South Pole=Amundsen; climbed Mount Everest first with Tenzing Norgay=Hillary;
was the third president of the United States=Jefferson; was the second president of the United States=Adams; was the
first woman prime minister of the United Kingdom=Thatcher; was the president of the United States in the Great
Depression and World War II=Roosevelt; was the first chancellor of the German Empire=Bismarck; led the Cuban
Revolution=Castro; led the Protestant Reformation in Geneva=Calvin; crossed the Alps with elephants=Hannibal; taught
Alexander the Great=Aristotle; taught Plato=Socrates; wrote the Communist Manifesto with Engels=Marx; sailed to India
around Africa first in 1498=Gama; conquered the Aztec Empire=Cortés|Cortes; conquered the Inca Empire=Pizarro;
directed Jaws=Spielberg; directed Psycho=Hitchcock; directed Titanic=Cameron; directed Star Wars in 1977=Lucas; made
Mickey Mouse=Disney; sang Thriller=Jackson; sang Like a Virgin=Madonna; is the thunder god of the Norse=Thor; is the
king of the Greek gods=Zeus; is the Roman god of war=Mars; is the Greek goddess of love=Aphrodite; is the Greek god of
the sea=Poseidon; is the Roman goddess of love=Venus; is the Greek goddess of wisdom=Athena
""",
    ("year", "In which year did {}?"): """
the Korean War begin=1950; the Suez Crisis happen=1956; the Cuban Missile Crisis happen=1962; Martin Luther King
die=1968; the Watergate break-in happen=1972; Elvis Presley die=1977; Mount St. Helens erupt=1980; the Falklands War
happen=1982; the Challenger space shuttle disaster happen=1986; Nelson Mandela become president=1994; Princess Diana
die=1997; the September 11 attacks happen=2001; Hurricane Katrina happen=2005; Michael Jackson die=2009; the D-Day
landings happen=1944; Adolf Hitler come to power in Germany=1933; the Spanish Civil War begin=1936; the Wright
brothers make their first flight=1903; the San Francisco earthquake happen=1906; the Boston Tea Party happen=1773; the
Battle of Gettysburg happen=1863; the Battle of Trafalgar happen=1805; Mozart die=1791; Shakespeare die=1616; the
Spanish Armada sail against England=1588; Martin Luther post his theses=1517; the Mayflower sail to America=1620;
Vesuvius destroy Pompeii=79; Julius Caesar die=44; the United States buy Alaska=1867; the Suez Canal open=1869; the
Panama Canal open=1914; the first modern Olympic Games take place=1896; Germany reunify=1990; Hong Kong return to
China=1997; the Apollo 13 mission happen=1970; Sputnik launch=1957; Yuri Gagarin fly into space=1961; Mahatma Gandhi
die=1948; Israel become a state=1948; the Treaty of Versailles get signed=1919; Joan of Arc die=1431
""",
    ("general", "{}?"): """
What is the square root of 16=4|four; What is the square root of 25=5|five; What is the square root of 36=6|six; What
is the square root of 100=10|ten; What is the square root of 121=11|eleven; What is 9 squared=81|eighty-one; What is 8
squared=64|sixty-four; What is 6 squared=36|thirty-six; What is 5 squared=25|twenty-five; What is 12 squared=144; What
is 3 cubed=27|twenty-seven; How many sides does a square have=4|four; How many sides does a heptagon have=7|seven; How
many sides does a decagon have=10|ten; How many sides does a rectangle have=4|four; How many wheels does a bicycle
have=2|two; How many wheels does a tricycle have=3|three; How many wheels does a normal car have=4|four; How many legs
does a dog have=4|four; How many arms does an octopus have=8|eight; How many legs does a crab have=10|ten; How many
days are in a leap year=366; How many weeks are in a year=52; How many hours are in two days=48; How many minutes are
in half an hour=30|thirty; How many cards are in a standard deck=52; How many squares are on a chessboard=64; How many
players are in a basketball team on the court=5|five; How many players are in a baseball team on the field=9|nine; How
many strings does a cello have=4|four; How many strings does a bass guitar usually have=4|four; How many teeth does an
adult human normally have=32; How many chambers does a human heart have=4|four; How many lungs does a human
have=2|two; How many zeros are in one thousand=3|three; How many zeros are in one billion=9|nine; How many vowels are
in the English alphabet=5|five|6|six; How many stars are on the flag of the United States=50|fifty; How many stripes
are on the flag of the United States=13|thirteen; How many moons does the Earth have=1|one; How many moons does Mars
have=2|two; How many items are in a dozen=12|twelve; How many years are in a decade=10|ten; How many years are in a
millennium=1,000|1000|thousand; How many cents are in a dollar=100|hundred; What color is the sun in most children's
drawings=yellow; What color is milk=white; What color is blood=red; What color is chocolate=brown; What color is a
sapphire=blue; What color is a carrot=orange; What color is a lime=green; What color is a polar bear=white; What color
is a flamingo=pink; What color is a raven=black; What color is a stop sign=red; What color do you get from mixing
black and white=gray|grey; What color are the leaves of most trees in summer=green; What color is a school bus in the
United States=yellow; What is a female chicken called=hen; What is a female cow called=cow|heifer; What is a male
horse called=stallion; What is a male pig called=boar; What is a male sheep called=ram; What is a male deer
called=buck|stag|hart; What is a male cat called=tom; What is a female tiger called=tigress; What is a male goat
called=buck|billy; What is a male bee called=drone; What is a female peacock called=peahen; What is a male swan
called=cob; What is a group of elephants called=herd|parade; What is a group of geese called=gaggle|flock|skein; What
is a group of birds called=flock; What is a group of whales called=pod|school; What is a group of puppies
called=litter; What is a person who makes clothes called=tailor|dressmaker|seamstress; What is a person who cuts hair
called=barber|hairdresser|hairstylist|stylist; What is a person who repairs water pipes called=plumber; What is a
person who takes pictures with a camera called=photographer; What is a person who designs buildings called=architect;
What is a person who cooks in a restaurant called=chef|cook; What is a person who sells flowers called=florist; What
is a person who sells meat called=butcher; What is a person who plays the piano called=pianist; What is a person who
studies the stars called=astronomer|astrologer; What is a person who catches fish called=fisherman|angler|fisher; What
is a person who collects stamps called=philatelist; What is a person who works with wood called=carpenter|woodworker;
What is a person who drives a train called=engineer|driver|conductor; What is a person who writes poems called=poet;
What is a person who grows crops called=farmer; What is a person who paints pictures called=painter|artist; What is
the study of plants called=botany; What is the study of animals called=zoology; What is the study of the weather
called=meteorology; What is the study of the mind's diseases called=psychiatry|psychopathology; What is the study of
insects called=entomology; What is the study of maps called=cartography; What is the study of fossils
called=paleontology|palaeontology; What is the study of earthquakes called=seismology; What is the study of birds
called=ornithology; What is the study of the heart called=cardiology; What is the study of the skin
called=dermatology; What is the study of matter and energy called=physics; What is the fear of spiders
called=arachnophobia; What is the fear of heights called=acrophobia; What is the fear of closed spaces
called=claustrophobia; In which sport is a home run scored=baseball; In which sport is a slam dunk made=basketball; In
which sport is there a scrum=rugby; In which sport is a checkered flag waved=racing|formula one|formula
1|motorsport|motor racing; In which sport do players bowl at a wicket=cricket; In which sport do players use a
cue=billiards|pool|snooker; In which sport is there a hole-in-one=golf; In which sport do people wear gloves and fight
in a ring=boxing; In which sport do people ride down snow on two long boards=skiing; Which planet is the second from
the Sun=Venus; Which planet is third from the Sun=Earth; Which planet is known for its Great Red Spot=Jupiter; Which
planet do humans live on=Earth; Which planet is the smallest=Mercury; Which star is closest to the Earth=Sun; What do
cows drink when they are adults=water; What do caterpillars turn into=butterflies|butterfly|moths|moth; What do
tadpoles turn into=frogs|frog|toads|toad; What do we call frozen rain in lumps=hail; What do we call water in the form
of gas=vapor|vapour|steam; What do we call molten rock that comes out of a volcano=lava; What do pandas eat=bamboo;
What do koalas eat=eucalyptus; What do silkworms make=silk; What do chickens lay=eggs|egg; What do sheep give us for
clothes=wool; What is paper made from=wood|pulp|trees|tree; What is glass made from=sand|silica; What is cheese made
from=milk; What is chocolate made from=cocoa|cacao; What is tofu made from=soy|soybean|soybeans; What is butter made
from=cream|milk; What is flour usually made from=wheat|grain|grains; What is wine made from=grapes|grape; What is the
main ingredient of omelettes=eggs|egg; What is the main ingredient of hummus=chickpeas|chickpea|garbanzo; What is the
main ingredient of ketchup=tomatoes|tomato; What fruit is cider made from=apples|apple; What fruit is a prune made
from=plums|plum; In which country is the Eiffel Tower=France; In which country is the Leaning Tower of Pisa=Italy; In
which country is the Sphinx=Egypt; In which country is Chichen Itza=Mexico; In which country is Mount
Everest=Nepal|China|Tibet; In which country is the Alhambra=Spain; In which country is the Acropolis=Greece; In which
country is Lake Como=Italy; In which country is Loch Ness=Scotland|United Kingdom|UK; In which country is the
Kremlin=Russia; In which country is Neuschwanstein Castle=Germany; In which country is the Burj Khalifa=United Arab
Emirates|UAE; In which country is Christ the Redeemer=Brazil; In which country is the Forbidden City=China; In which
country is Uluru=Australia; In which country is Buckingham Palace=England|United Kingdom|UK; In which city is Times
Square=New York; In which city is Trafalgar Square=London; In which city is the Arc de Triomphe=Paris; In which city
is the Hermitage museum=Petersburg; In which city is the Prado museum=Madrid; In which city is the Uffizi
gallery=Florence; In which city is the Opera House with white sails=Sydney; In which city is Red Square=Moscow; In
which city is the Space Needle=Seattle; In which city is the White House=Washington; In which city is the
Parthenon=Athens; In which city is the Blue Mosque=Istanbul; In which city is the Little Mermaid statue=Copenhagen;
Which metal is attracted by magnets and rusts=iron|steel; Which metal is used in most drink cans=aluminum|aluminium;
Which gas fills party balloons that float=helium; Which gas do we breathe out=carbon dioxide|CO2; Which organ cleans
the blood and makes urine=kidneys|kidney; Which organ do we see with=eyes|eye; Which organ do we smell with=nose;
Which organ do we hear with=ears|ear; Which organ digests food with acid=stomach; Which vitamin do citrus fruits give
us=C; Which is the coldest continent=Antarctica; Which is the smallest ocean=Arctic; Which is the largest
bird=ostrich; Which is the largest fish=whale shark; Which is the largest cat=tiger; Which is the deepest lake=Baikal;
Which is the largest island=Greenland; Which is the tallest mountain in Africa=Kilimanjaro; Which is the longest wall
in the world=China; Which bird is a symbol of peace=dove; Which bird can mimic human speech=parrot|mynah|myna; Which
animal is called the king of the jungle=lion; Which animal carries its baby in a
pouch=kangaroo|koala|opossum|wallaby|marsupial; Which animal has a trunk=elephant; Which animal has black and white
stripes and looks like a horse=zebra; Which animal barks=dog; Which animal says meow=cat; Which insect makes
honey=bee|bees|honeybee; Which insect glows at night=firefly|fireflies
""",
}

SPOKEN = {"+": " + ", "x": " x ", "/": " divided by "}
GROUPS = {"+": "add", "x": "times", "/": "divide"}
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = [".", ".", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spelled(n: int) -> str:
    """Return a number below 1,000 in words."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")
    return f"{ONES[n // 100]} hundred" + (f" and {spelled(n % 100)}" if n % 100 else "")


def arithmetic() -> Iterator[tuple[str, str, list[str]]]:
    """Yield group, question and references of the sums, doubles and halves."""
    for term in SUMS.split():
        a, sign, b = re.split(r"([+x/])", term)
        x, y = int(a), int(b)
        result = {"+": x + y, "x": x * y, "/": x // y}[sign]
        group = "add small" if sign == "+" and max(x, y) <= 20 else GROUPS[sign]
        yield group, f"What is {a}{SPOKEN[sign]}{b}?", [str(result), spelled(result)]
    for n in TWICE:
        yield "twice", f"What is twice {n}?", [str(2 * n), spelled(2 * n)]
    for n in HALF:
        yield "half", f"What is half of {n}?", [str(n // 2), spelled(n // 2)]
    for n in NUMBERS:
        yield "in words", f"How do you write the number {n} in words?", [spelled(n), spelled(n).replace("-", " ")]
        yield "in digits", f"How do you write the number {spelled(n + 1)} in digits?", [str(n + 1)]


def facts() -> Iterator[tuple[str, str, list[str]]]:
    """Yield group, question and references of the tables."""
    for (group, template), table in TABLES.items():
        for row in " ".join(table.split()).split("; "):
            subject, _, references = row.rpartition("=")
            yield group, template.format(subject), references.split("|")


def words(text: str) -> str:
    """Return the words of a text in lower case, with a space around each."""
    return " ".join(["", *re.findall(r"[^\W_]+", text.casefold()), ""])


def questions() -> list[dict[str, object]]:
    """Return the questions in the order of the file; a question that contains a reference is left out."""
    rows, seen = [], set()
    for group, question, references in [*arithmetic(), *facts()]:
        if question not in seen and not any(words(reference) in words(question) for reference in references):
            rows.append({"question": question, "references": list(dict.fromkeys(references)), "group": group})
        seen.add(question)
    random.Random(0).shuffle(rows)
    return rows


def main() -> None:
    """Write the file."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in questions()]
    FILE.write_text("".join(lines), encoding="utf-8")
    sys.stdout.write(f"{len(lines):,} questions in {FILE}\n")


if __name__ == "__main__":
    main()
